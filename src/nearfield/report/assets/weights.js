// Pair weights: the curves of two losses beside each other, and their weights over the same batch.

function weightsSection() {
  const found = new Map(D.weights.losses.map((one) => [one.method, one]));
  const labels = unpack(D.weights.batch), size = labels.length;
  const methods = byPlace(found.keys());
  const state = [methods[0], methods[1] ?? null];
  const box = at("weights-panels");
  const KINDS = { negative: ["Weight of a negative pair", (n) => `other negatives at ${n}`], positive: ["Weight of a positive pair", (n) => `negatives at ${n}`] };
  const SIMILARITY = ["0", "0.3", "0.6"];
  const heats = [];

  function panel(method) {
    const one = found.get(method);
    const spn = (text) => (text ? [...text].join(" ") : "none of them");
    const settings = Object.entries(one.settings).map(([key, value]) => `${key} = ${value}`).join(", ");
    const charts = Object.entries(one.curves).map(([kind, curves]) => {
      const chart = h("div");
      responsive(chart, (width) => lineChart(width, { series: curves.map((mid, i) => ({ name: KINDS[kind][1](SIMILARITY[i]), look: `m${i} dash${i}`, x: one.similarity, mid })),
        xLabel: "similarity S", yLabel: "W", height: 210, format: (v) => short(v), named: false, zero: true, label: `${KINDS[kind][0]} of ${nameOf(method)} by similarity` }));
      return h("div", { style: { "margin-top": "14px" } }, h("h4", {}, KINDS[kind][0]), h("div", { class: "keyrow" }, curves.map((_, i) => h("span", { class: `m${i} dash${i}` }, h("span", { class: "swatch" }), KINDS[kind][1](SIMILARITY[i])))), chart);
    });
    return h("div", {}, h("h3", { style: { "margin-top": "0" } }, nameOf(method)),
      h("p", { class: "caption" }, one.similarity.length ? `The weight of a negative responds to: ${spn(one.measured)}${one.paper && one.paper !== one.measured ? ` (the Multi-Similarity paper says ${spn(one.paper)}${one.note ? `: ${one.note}` : ""})` : ""}. ` : "Its weights follow from a clustering of the whole batch, so there are no curves. ",
        settings ? `Setting: ${settings}.` : "Published setting."), charts, heat(one));
  }
  function heat(one) {
    const values = unpack(one.heat);
    const canvas = h("canvas", { width: size, height: size, role: "img", "aria-label": `Weights of ${nameOf(one.method)} over a batch of ${size}` });
    const ramp = h("i");
    const draw = () => {
      const rgb = (name) => ink(name).match(/[\d.]+/g).slice(0, 3).map(Number);
      const paper = rgb("--paper"), push = rgb("--m1"), pull = rgb("--m0");
      const context = canvas.getContext("2d"), image = context.createImageData(size, size);
      values.forEach((v, i) => {
        const end = v > 0 ? push : pull, t = Math.sqrt(Math.abs(v) / 127);
        for (let c = 0; c < 3; c++) image.data[4 * i + c] = paper[c] + (end[c] - paper[c]) * t;
        image.data[4 * i + 3] = 255;
      });
      context.putImageData(image, 0, 0);
      ramp.style.background = "linear-gradient(var(--m1), var(--paper), var(--m0))";
    };
    canvas.addEventListener("pointermove", (event) => {
      const area = canvas.getBoundingClientRect();
      const [column, row] = [(event.clientX - area.left) / area.width, (event.clientY - area.top) / area.height].map((v) => Math.max(0, Math.min(size - 1, Math.floor(v * size))));
      const weight = (values[row * size + column] / 127) * one.top;
      showTip(event.clientX, event.clientY, h("b", {}, `W ${weight.toPrecision(2)}`), h("div", {}, `query of ${className(labels[row])}`), h("div", {}, `reference of ${className(labels[column])}`));
    });
    canvas.addEventListener("pointerleave", hideTip);
    draw();
    heats.push(draw);
    return h("div", { style: { "margin-top": "14px" } }, h("h4", {}, `Weights over a batch of ${size}`), h("div", { class: "heat" }, canvas,
      h("div", { class: "scale" }, `${short(one.top)} pushed apart`, ramp, `${short(-one.top)} pulled together`)));
  }
  const draw = () => {
    heats.length = 0;
    box.className = state[1] === null ? "duel single" : "duel";
    box.replaceChildren(...state.filter((m) => m !== null).map(panel));
  };
  const none = { value: null, text: "– nothing –" };
  at("weights-controls").replaceChildren(...[choose("Loss", methodOptions(methods), state[0], (m) => { state[0] = m; draw(); }),
    methods.length > 1 ? choose("Beside", [none, ...methodOptions(methods)], state[1], (m) => { state[1] = m; draw(); }) : null].filter(Boolean));
  draw();
  box.after(h("p", { class: "caption" }, `S: its own similarity, all of a query's moving together. P: the positives'. N: the other negatives'. The batch: ${size} test embeddings of ${nameOf(D.weights.of)}, the same for every loss; colours by the square root of the weight, relative to the largest.`));
  themed.push(() => heats.forEach((again) => again()));
}
