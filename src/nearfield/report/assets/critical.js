// @ts-check
// The critical-difference diagram: average ranks, and bars over methods whose ranks do not differ significantly.

function drawCritical() {
  const found = boardPart().critical;
  if (!found) {
    at("critical").replaceChildren();
    return;
  }
  const box = h("div");
  const caption =
    `Average ranks by ${METRICS[METRIC].text} within ${boardPart().compared_seeds.length} seeds ` +
    `(Friedman: p ${pText(found.p)}). Two methods differ significantly if their average ranks are more than ` +
    `${found.difference.toFixed(1)} apart (Nemenyi, 95 %); a bar at the right joins methods that do not. ` +
    "This test is coarser than the paired tests above, and covers new seeds only.";
  const head = [h("h3", {}, "Critical difference"), h("p", { class: "caption" }, caption)];
  at("critical").replaceChildren(h("div", { class: "figure" }, head, box));
  responsive(box, (width) => criticalDiagram(found, width));
}

/**
 * @param {CriticalDifference} found
 * @param {number} width
 */
function criticalDiagram(found, width) {
  const order = range(found.methods.length).sort((a, b) => found.ranks[a] - found.ranks[b]);
  const count = order.length;
  const names = order.map((column) => nameOf(found.methods[column]));
  const left = Math.min(widest(names) + 12, width * 0.42);
  const right = width - 14 - found.groups.length * 10;
  const top = 44;
  const step = 21;
  const height = top + step * count + 8;
  const x = scale(1, Math.max(count, 2), left + 12, right - 34);
  const y = (/** @type {number} */ i) => top + step * i + step / 2;
  const rows = order.map((column, i) => {
    const rank = found.ranks[column];
    return s(
      "g",
      { class: i === 0 ? "m0" : "" },
      s("line", { class: "grid", x1: left, x2: x(rank), y1: y(i), y2: y(i) }),
      s("text", { class: "name", x: left - 2, y: y(i) + 4, "text-anchor": "end" }, fit(names[i], left - 4)),
      s("circle", { class: "dot", cx: x(rank), cy: y(i), r: 4.5 }),
      s("text", { class: "soft", x: x(rank) + 9, y: y(i) + 4 }, rank.toFixed(1)),
    );
  });
  const row = new Map(order.map((column, i) => [column, i]));
  const bars = found.groups.map((group, g) => {
    const rowsOfGroup = group.map((column) => got(row, column));
    const d = `M${right + 8 + 10 * g},${y(Math.min(...rowsOfGroup)) - 5}V${y(Math.max(...rowsOfGroup)) + 5}`;
    return s("path", { class: "joined", d });
  });
  const axis = rankAxis(count, width, x, top, height - 8);
  const label = `Average ranks of ${count} methods`;
  return svg(width, height, label, axis, differenceMark(found.difference, count, width, x), rows, bars);
}

/**
 * @param {number} count
 * @param {number} width
 * @param {(value: number) => number} x
 * @param {number} top
 * @param {number} bottom
 */
function rankAxis(count, width, x, top, bottom) {
  const later = ticks(1, count, Math.max(2, Math.min(count, width / 90)));
  const shown = [1, ...later.filter((t) => Number.isInteger(t) && x(t) - x(1) > 24)];
  return shown.map((t) => [
    s("line", { class: "grid", x1: x(t), x2: x(t), y1: top - 4, y2: bottom }),
    s("text", { class: "soft", x: x(t), y: top - 10, "text-anchor": "middle" }, String(t)),
  ]);
}

/**
 * The critical difference as a length on the axis.
 * @param {number} difference
 * @param {number} count
 * @param {number} width
 * @param {(value: number) => number} x
 */
function differenceMark(difference, count, width, x) {
  const end = x(Math.min(1 + difference, count));
  const d = `M${x(1)},8V16M${x(1)},12H${end}M${end},8V16`;
  return [
    s("path", { class: "joined", d, style: { "stroke-width": 1.5 } }),
    s("text", { class: "soft", x: Math.min(end + 8, width - 150), y: 16 }, "critical difference"),
  ];
}
