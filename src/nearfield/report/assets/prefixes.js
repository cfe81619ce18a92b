// @ts-check
// Scores of embeddings that are cut to their first dims.

function prefixesSection() {
  const found = new Map((D.prefixes ?? []).map((one) => [one.method, one]));
  const methods = byPlace(found.keys());
  const keys = Object.keys(got(found, methods[0]).scores).filter((key) => key in METRICS);
  const state = { metric: keys.includes(D.select_by) ? D.select_by : keys[0] };
  const chart = responsive(at("prefix-chart"), (width) => prefixChart(width, found, methods, state.metric));
  const draw = () => {
    chart();
    at("prefix-table").replaceChildren(prefixTable(found, methods, state.metric));
  };
  const change = (/** @type {string} */ key) => {
    state.metric = key;
    draw();
  };
  const options = keys.map((key) => ({ value: key, text: METRICS[key].text }));
  at("prefix-controls").replaceChildren(choose("Score", options, state.metric, change));
  draw();
}

/**
 * @param {number} width
 * @param {Map<number, MethodPrefixes>} found
 * @param {number[]} methods
 * @param {string} metric
 */
function prefixChart(width, found, methods, metric) {
  const text = METRICS[metric].text;
  return lineChart(width, {
    series: methods.map((m) => {
      const { dims, scores } = got(found, m);
      return { name: nameOf(m), look: look(m), x: dims, mid: scores[metric] };
    }),
    xLabel: "dims",
    yLabel: `test ${text}, %`,
    height: width < 600 ? 320 : 420,
    format: inPercent,
    named: width >= 600,
    label: `Test ${text} in percent by the number of dims that are kept`,
    log: true,
  });
}

/**
 * @param {Map<number, MethodPrefixes>} found
 * @param {number[]} methods
 * @param {string} metric
 */
function prefixTable(found, methods, metric) {
  const sizes = new Map(methods.flatMap((m) => got(found, m).dims.map((d, i) => [d, got(found, m).bytes[i]])));
  const dims = [...sizes.keys()].sort((a, b) => a - b);
  const head = dims.map((d) => h("th", { scope: "col" }, `${whole(d)} dims, ${whole(got(sizes, d))} bytes`));
  const rows = methods.map((m) => {
    const one = got(found, m);
    const cells = dims.map((d) => {
      const place = one.dims.indexOf(d);
      return h("td", {}, place < 0 ? "" : percent(one.scores[metric][place], 2));
    });
    return h("tr", {}, h("th", { scope: "row", class: "name" }, nameOf(m)), cells);
  });
  const first = h("th", { scope: "col", class: "name" }, "Method");
  return h("table", {}, h("thead", {}, h("tr", {}, first, head)), h("tbody", {}, rows));
}
