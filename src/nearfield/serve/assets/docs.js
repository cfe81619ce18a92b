// @ts-check
// The API as /openapi.json describes it: routes, parameters, bodies and errors.

async function describe() {
  const described = await (await fetch("/openapi.json")).json();
  at("lead").textContent = described.info.description;
  at("example").textContent = `curl -F image=@query.jpg '${location.origin}/search?k=5'`;
  const routes = Object.entries(described.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => route(method, path, operation)),
  );
  at("routes").replaceChildren(...routes);
  document.documentElement.dataset.ready = "true";
}

/**
 * @param {string} method
 * @param {string} path
 * @param {Operation} operation
 */
function route(method, path, operation) {
  const parameters = (operation.parameters ?? []).map((each) => {
    const standard = each.schema?.default;
    const rest = each.required
      ? ", required"
      : standard === undefined || standard === null
        ? ""
        : `, default ${standard}`;
    return [`${each.name} (${each.in}${rest})`, each.description ?? ""];
  });
  const bodies = Object.entries(operation.requestBody?.content ?? {}).flatMap(([kind, { schema }]) =>
    Object.entries(schema.properties ?? {}).map(([name, { description }]) => [`${name} (${kind})`, description ?? ""]),
  );
  const answers = Object.entries(operation.responses).map(([status, { description }]) => [status, description]);
  return h(
    "section",
    { class: "route" },
    h("h2", {}, `${method.toUpperCase()} ${path}`),
    (operation.description ?? operation.summary ?? "").split("\n\n").map((text) => h("p", {}, text)),
    pairs([...parameters, ...bodies]),
    h("details", {}, h("summary", {}, "Answers"), pairs(answers)),
  );
}

const pairs = (/** @type {string[][]} */ entries) =>
  h(
    "dl",
    { class: "pairs" },
    entries.map(([name, text]) => [h("dt", {}, h("code", {}, name)), h("dd", {}, text)]),
  );

themeSwitch();
void describe();
