// @ts-check
// From the images of the query, filter and feedback to a request, and to its answer.

function showControls() {
  const sizes = [6, 12, 24, 48, 96].map((n) => /** @type {[string, string]} */ ([String(n), String(n)]));
  const filter = listOf("Class", classOptions(), state.label, (value) => {
    state.label = value;
    void search();
  });
  const count = listOf("Results", sizes, String(state.k), (value) => {
    state.k = Number(value);
    void search();
  });
  const marks = state.right.size + state.wrong.size;
  const refine = `Search again with feedback (${state.right.size} right, ${state.wrong.size} wrong)`;
  at("controls").replaceChildren(
    ...present([
      filter,
      count,
      marks > 0 && button(refine, () => void search(), { id: "refine" }),
      state.examples.length > 0 && button("Start over", startOver, { id: "over" }),
    ]),
  );
}

/**
 * The images as a form.
 * @param {ImageExample[]} images
 */
function formOf(images) {
  const form = new FormData();
  for (const each of images) {
    form.append("image", each.file);
    form.append("crop", each.box ? each.box.map((v) => v.toFixed(5)).join(",") : "");
  }
  return form;
}

/** Search what the query holds; an answer that comes after a later question is dropped. */
async function search() {
  if (!state.examples.length) return;
  const number = ++state.asked;
  const started = performance.now();
  at("hits").classList.add("busy");
  say("Searching");
  try {
    const answer = await request();
    if (number !== state.asked) return;
    report(null);
    showAnswer(answer, performance.now() - started);
  } catch (error) {
    if (number !== state.asked) return;
    report(error);
  }
  at("hits").classList.remove("busy");
}

/** @returns {Promise<Answer>} */
async function request() {
  const query = new URLSearchParams({ k: String(state.k), collapse: "true", vectors: "true" });
  if (state.label) query.set("label", state.label);
  const images = state.examples.filter((each) => each.kind === "image");
  const unknown = images.filter((each) => !each.vector);
  const plain = !state.right.size && !state.wrong.size;
  if (plain && unknown.length === state.examples.length) {
    return embedded(unknown, `/search?${query}`);
  }
  if (unknown.length) await embedded(unknown, "/search?k=1&vectors=true");
  const chosen = state.examples.filter((each) => each.kind === "item").map((each) => each.id);
  const vectors = images.map((each) => each.vector);
  return talk(`/search?${query}`, asJson({ vectors, items: chosen, right: [...state.right], wrong: [...state.wrong] }));
}

/**
 * The answer about images, which keep their vectors: unless another part was chosen while the server was asked.
 * @param {ImageExample[]} images
 * @param {string} path
 * @returns {Promise<Answer>}
 */
async function embedded(images, path) {
  const parts = images.map((each) => each.box);
  const answer = await talk(path, { method: "POST", body: formOf(images) });
  images.forEach((each, i) => {
    if (each.box === parts[i]) each.vector = answer.vectors[i];
  });
  return answer;
}
