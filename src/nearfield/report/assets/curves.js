// @ts-check
// Learning curves.

function curvesSection() {
  const found = new Map(D.curves.map((c) => [c.method, c]));
  const methods = byPlace(found.keys());
  const keys = D.metrics.map((m) => m.key).filter((key) => D.curves.some((c) => key in c.val.bands));
  const state = {
    metric: keys.includes(D.select_by) ? D.select_by : keys[0],
    on: new Set(methods.slice(0, 5)),
    oracle: false,
  };
  const draw = responsive(at("curve-chart"), (width) => curvesChart(width, found, methods, state));
  const chips = methods.map((m) => {
    const toggle = () => {
      if (!state.on.delete(m)) state.on.add(m);
      press(chip, state.on.has(m));
      draw();
    };
    const chip = button([h("span", { class: "swatch" }), nameOf(m)], toggle, { class: `chip ${look(m)}` });
    press(chip, state.on.has(m));
    return chip;
  });
  const select = (/** @type {number[]} */ wanted) => {
    state.on = new Set(wanted);
    chips.forEach((chip, i) => press(chip, state.on.has(methods[i])));
    draw();
  };
  at("curve-chips").replaceChildren(...chips);
  const metrics = keys.map((key) => ({ value: key, text: METRICS[key].text }));
  const changeMetric = (/** @type {string} */ key) => {
    state.metric = key;
    draw();
  };
  const several = [
    button("First five", () => select(methods.slice(0, 5))),
    button("All", () => select(methods)),
    button("None", () => select([])),
  ];
  const shown = [
    { value: false, text: "Hide" },
    { value: true, text: "Show dashed" },
  ];
  const changeOracle = (/** @type {boolean} */ on) => {
    state.oracle = on;
    draw();
  };
  const hasOracle = D.curves.some((c) => c.oracle.steps.length);
  at("curve-controls").replaceChildren(
    ...present([
      keys.length > 1 && choose("Score", metrics, state.metric, changeMetric),
      methods.length > 5 && h("div", { class: "group" }, several),
      hasOracle && segments("Test classes (not used for selection)", shown, false, changeOracle),
    ]),
  );
}

/**
 * @param {number} width
 * @param {Map<number, MethodCurves>} found
 * @param {number[]} methods
 * @param {{ metric: string, on: Set<number>, oracle: boolean }} state
 */
function curvesChart(width, found, methods, { metric, on, oracle }) {
  /**
   * @param {number} m
   * @param {"val" | "oracle"} part
   * @param {"faint" | "oracle"} [kind]
   * @returns {Series}
   */
  const line = (m, part, kind) => {
    const { steps, bands } = got(found, m)[part];
    const [mid, low, high] = bands[metric];
    const name = nameOf(m) + (kind === "oracle" ? ", test" : "");
    return { name, look: look(m), x: steps, mid, low, high, kind };
  };
  const usable = methods.filter((m) => got(found, m).val.bands[metric]);
  const shown = usable.filter((m) => on.has(m));
  const tested = oracle ? shown.filter((m) => got(found, m).oracle.bands[metric]) : [];
  const series = [
    ...usable.filter((m) => !on.has(m)).map((m) => line(m, "val", "faint")),
    ...shown.map((m) => line(m, "val")),
    ...tested.map((m) => line(m, "oracle", "oracle")),
  ];
  const marks = shown.map((m) => {
    const { val, chosen } = got(found, m);
    const distance = val.steps.map((step) => Math.abs(step - chosen));
    const i = distance.indexOf(Math.min(...distance));
    return { look: look(m), x: val.steps[i], y: val.bands[metric][0][i] };
  });
  const text = METRICS[metric].text;
  return lineChart(width, {
    series,
    marks,
    xLabel: "step",
    yLabel: `validation ${text}, %`,
    height: width < 600 ? 320 : 420,
    format: inPercent,
    named: width >= 600,
    label: `Validation ${text} in percent by training step`,
  });
}
