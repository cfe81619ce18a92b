// @ts-check
// The page: sections without content are removed, the others are drawn one after another.

function provenanceSection() {
  const { facts, protocol, command, toml, missing } = D.provenance;
  const list = (/** @type {Record<string, string>} */ pairs) => {
    const code = Object.entries(pairs).map(([name, value]) => [name, h("code", {}, value)]);
    return h(
      "dl",
      { class: "pairs" },
      code.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
    );
  };
  const runs = h("div", {}, h("h3", {}, "Runs"), list(facts));
  const rules = h("div", {}, h("h3", {}, "Protocol"), list(protocol));
  const copied = () => "Command copied";
  at("provenance-body").replaceChildren(
    ...present([
      h("div", { class: "columns" }, runs, rules),
      command && [
        h("h3", {}, "Reproduce"),
        h("pre", { id: "command" }, command),
        copyButton("Copy the command", () => command, copied),
      ],
      h("details", {}, h("summary", {}, "Resolved configuration"), h("pre", {}, toml)),
      missing.length > 0 && [h("h3", {}, "Not finished, not counted"), missingTasks(missing)],
    ]),
  );
}

function missingTasks(/** @type {string[]} */ tasks) {
  const shown = tasks.slice(0, 400).map((task) => h("li", {}, task));
  const rest = tasks.length > 400 && h("li", {}, `and ${whole(tasks.length - 400)} more`);
  return h("ul", { id: "missing" }, shown, rest);
}

/** @type {{ id: string, wanted: boolean, draw: () => void }[]} */
const SECTIONS = [
  { id: "leaderboard", wanted: true, draw: leaderboardSection },
  { id: "curves", wanted: D.curves.length > 0, draw: curvesSection },
  { id: "prefixes", wanted: Boolean(D.prefixes?.length), draw: prefixesSection },
  { id: "search", wanted: D.searches.length > 0, draw: searchSection },
  { id: "bias", wanted: D.ledger.length > 0, draw: biasSection },
  { id: "atlas", wanted: Boolean(D.atlas), draw: atlasSection },
  { id: "gallery", wanted: Boolean(D.gallery), draw: gallerySection },
  { id: "weights", wanted: Boolean(D.weights), draw: weightsSection },
  { id: "provenance", wanted: true, draw: provenanceSection },
];
themeSwitch();
for (const { id, wanted } of SECTIONS) if (!wanted) at(id).remove();
const drawn = SECTIONS.filter(({ wanted }) => wanted);
at("nav").replaceChildren(...drawn.map(({ id }) => h("a", { href: `#${id}` }, at(id).dataset.title)));
for (const { draw } of drawn) draw();
document.documentElement.dataset.ready = "true";
