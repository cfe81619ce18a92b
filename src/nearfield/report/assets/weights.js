// @ts-check
// Pair weights: the curves of two losses beside each other, and their weights over the same batch.

const WEIGHT_KINDS = {
  negative: { title: "Weight of a negative pair", others: "other negatives" },
  positive: { title: "Weight of a positive pair", others: "negatives" },
};
const SIMILARITIES = ["0", "0.3", "0.6"]; // of the neighbourhood, a curve each

function weightsSection() {
  if (!D.weights) return;
  const found = new Map(D.weights.losses.map((one) => [one.method, one]));
  const labels = unpack(D.weights.batch);
  const methods = byPlace(found.keys());
  const box = at("weights-panels");
  /** @type {{ first: number, second: number | null }} */
  const state = { first: methods[0], second: methods[1] ?? null };
  /** @type {(() => void)[]} */
  let heats = [];
  const draw = () => {
    const shown = state.second === null ? [state.first] : [state.first, state.second];
    const panels = shown.map((m) => weightsPanel(got(found, m), labels));
    heats = panels.map((panel) => panel.redraw);
    box.className = state.second === null ? "duel single" : "duel";
    box.replaceChildren(...panels.map((panel) => panel.node));
  };
  const first = choose("Loss", methodOptions(methods), state.first, (m) => {
    state.first = m;
    draw();
  });
  const second = choose("Compare with", optionalMethods(methods), state.second, (m) => {
    state.second = m;
    draw();
  });
  at("weights-controls").replaceChildren(...present([first, methods.length > 1 && second]));
  draw();
  const caption =
    "S: the similarity of the pair itself, all pairs of its query moving together. P: those of the positives. " +
    `N: those of the other negatives. The batch: ${labels.length} test embeddings of ${nameOf(D.weights.of)}, ` +
    "the same for every loss; colours by the square root of the weight, relative to the largest.";
  box.after(h("p", { class: "caption" }, caption));
  themed.push(() => heats.forEach((redraw) => redraw()));
}

/**
 * @param {LossWeights} one
 * @param {Numbers} labels of the batch
 */
function weightsPanel(one, labels) {
  const { node, redraw } = weightsHeat(one, labels);
  const charts = [weightsChart(one, "negative"), weightsChart(one, "positive")];
  const title = h("h3", { style: { "margin-top": "0" } }, nameOf(one.method));
  return { node: h("div", {}, title, h("p", { class: "caption" }, weightsText(one)), charts, node), redraw };
}

function weightsText(/** @type {LossWeights} */ one) {
  const settings = Object.entries(one.settings).map(([key, value]) => `${key} = ${value}`);
  const setting = settings.length ? `Setting: ${settings.join(", ")}.` : "Published setting.";
  if (!one.similarity.length) {
    return `Its weights follow from a clustering of the whole batch, so there are no curves. ${setting}`;
  }
  const letters = (/** @type {string} */ text) => (text ? [...text].join(" ") : "none of them");
  const why = one.note ? `: ${one.note}` : "";
  const differs = one.paper && one.paper !== one.measured;
  const paper = differs ? ` (the Multi-Similarity paper says ${letters(one.paper)}${why})` : "";
  return `The weight of a negative pair depends on: ${letters(one.measured)}${paper}. ${setting}`;
}

/**
 * @param {LossWeights} one
 * @param {"negative" | "positive"} kind
 */
function weightsChart(one, kind) {
  const curves = one.curves[kind];
  if (!curves) return null;
  const { title, others } = WEIGHT_KINDS[kind];
  const series = curves.map((mid, i) => ({
    name: `${others} at ${SIMILARITIES[i]}`,
    look: `m${i} dash${i}`,
    x: one.similarity,
    mid,
  }));
  const chart = h("div");
  responsive(chart, (width) =>
    lineChart(width, {
      series,
      xLabel: "similarity S",
      yLabel: "W",
      height: 210,
      format: (v) => short(v),
      named: false,
      zero: true,
      label: `${title} of ${nameOf(one.method)} by similarity`,
    }),
  );
  const keys = series.map(({ look, name }) => h("span", { class: look }, h("span", { class: "swatch" }), name));
  return h("div", { style: { "margin-top": "14px" } }, h("h4", {}, title), h("div", { class: "keyrow" }, keys), chart);
}

/**
 * The weights over the batch: a square of colours.
 * @param {LossWeights} one
 * @param {Numbers} labels
 */
function weightsHeat(one, labels) {
  const size = labels.length;
  const values = unpack(one.heat);
  const label = `Weights of ${nameOf(one.method)} over a batch of ${size}`;
  const canvas = h("canvas", { width: size, height: size, role: "img", "aria-label": label });
  const redraw = () => paintHeat(canvas, values, size);
  canvas.addEventListener("pointermove", (event) => {
    const [column, row] = cellUnder(event, canvas, size);
    const weight = (values[row * size + column] / 127) * one.top;
    const head = h("b", {}, `W ${weight.toPrecision(2)}`);
    const query = h("div", {}, `query of ${className(labels[row])}`);
    const reference = h("div", {}, `reference of ${className(labels[column])}`);
    showTip(event.clientX, event.clientY, head, query, reference);
  });
  canvas.addEventListener("pointerleave", hideTip);
  redraw();
  const ramp = h("i", { style: { background: "linear-gradient(var(--m1), var(--paper), var(--m0))" } });
  const [push, pull] = [`${short(one.top)} pushed apart`, `${short(-one.top)} pulled together`];
  const heat = h("div", { class: "heat" }, canvas, h("div", { class: "scale" }, push, ramp, pull));
  const title = h("h4", {}, `Weights over a batch of ${size}`);
  return { node: h("div", { style: { "margin-top": "14px" } }, title, heat), redraw };
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {Numbers} values
 * @param {number} size
 */
function paintHeat(canvas, values, size) {
  const rgb = (/** @type {string} */ name) => (ink(name).match(/[\d.]+/g) ?? []).slice(0, 3).map(Number);
  const [paper, push, pull] = [rgb("--paper"), rgb("--m1"), rgb("--m0")];
  const context = context2d(canvas);
  const image = context.createImageData(size, size);
  values.forEach((v, i) => {
    const end = v > 0 ? push : pull;
    const t = Math.sqrt(Math.abs(v) / 127);
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = paper[c] + (end[c] - paper[c]) * t;
    image.data[4 * i + 3] = 255;
  });
  context.putImageData(image, 0, 0);
}
