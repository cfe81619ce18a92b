// @ts-check
// Published scores beside ours.

function drawPapers() {
  const tables = (D.papers?.tables ?? []).filter((t) => t.part === boardPart().key);
  tables.sort((a, b) => b.rows.length - a.rows.length);
  if (!tables.length) {
    at("papers").replaceChildren();
    return;
  }
  const state = { table: tables[0], metric: tables[0].metrics.includes(METRIC) ? METRIC : tables[0].metrics[0] };
  const controls = h("div", { class: "controls" });
  const caption = h("p", { class: "caption" });
  const table = h("table", { id: "papers-table" });
  const parts = [controls, caption, scrollable("Published scores", table)];
  at("papers").replaceChildren(h("div", { class: "figure" }, h("h3", {}, "Published scores"), parts));
  const sources = tables.map((t) => ({ value: t, text: `${t.title.split(",")[0].split(" (")[0]}: ${t.network}` }));
  const draw = () => {
    const metrics = state.table.metrics.map((m) => ({ value: m, text: METRICS[m]?.text ?? m }));
    controls.replaceChildren(
      choose("Published in", sources, state.table, (t) => {
        state.table = t;
        if (!t.metrics.includes(state.metric)) state.metric = t.metrics[0];
        draw();
      }),
      choose("Score", metrics, state.metric, (m) => {
        state.metric = m;
        draw();
      }),
    );
    caption.replaceChildren(papersCaption(state.table, state.metric));
    const heads = ["Method", "Ours", "Published", "Our rank", "Their rank"];
    const head = heads.map((text, i) => plainHead(text, i ? null : "name"));
    table.replaceChildren(h("thead", {}, h("tr", {}, head)), h("tbody", {}, papersRows(state.table, state.metric)));
  };
  draw();
}

/**
 * @param {PublishedTable} table
 * @param {string} metric
 */
function papersCaption(table, metric) {
  const tau = table.taus[metric];
  return (
    `${table.title}. Differences: ${table.network} there, ${D.papers?.ours} here. ${table.differs} ` +
    "Compare the order rather than the level: Kendall's τ between the two rankings is " +
    `${tau === null ? "undefined" : tau.toFixed(2)}.`
  );
}

/**
 * @param {PublishedTable} table
 * @param {string} metric
 */
function papersRows(table, metric) {
  const board = new Map(boardPart().rows.map((r) => [r.method, r.scores[metric]]));
  const ours = table.rows.map((r) => got(board, r.method));
  const theirs = table.rows.map((r) => r.scores[metric]);
  const rank = (/** @type {Interval[]} */ all, /** @type {Interval} */ one) =>
    String(1 + all.filter(([mean]) => mean > one[0]).length);
  const cell = (/** @type {Interval} */ [mean, half]) =>
    h("td", {}, percent(mean), half !== null && h("span", { class: "half" }, ` ±${percent(half)}`));
  return table.rows.map((r, i) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, nameOf(r.method)),
      cell(ours[i]),
      cell(theirs[i]),
      h("td", {}, rank(ours, ours[i])),
      h("td", {}, rank(theirs, theirs[i])),
    ),
  );
}
