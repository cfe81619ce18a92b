// @ts-check
// A line chart: series with bands, and their values under the pointer.

/**
 * @param {number} value
 * @param {boolean} [exact]
 */
const inPercent = (value, exact) => (exact ? percent(value, 2) : Number((100 * value).toFixed(4)).toString());

/** @typedef {ReturnType<typeof chartFrame>} ChartFrame */

/**
 * Sizes, scales and the series that are drawn and named.
 * @param {number} width
 * @param {LineChart} chart
 */
function chartFrame(width, { series, height, format, named, zero, log }) {
  const drawn = series.filter((one) => one.x.length);
  const xs = drawn.flatMap((one) => one.x);
  const ys = drawn.flatMap((one) => [...(one.low ?? one.mid), ...(one.high ?? one.mid), ...(zero ? [0] : [])]);
  let low = Math.min(...ys);
  let high = Math.max(...ys);
  if (high - low < 1e-9) {
    low -= 0.01;
    high += 0.01;
  }
  const pad = (high - low) * 0.04;
  const labelled = named ? drawn.filter((one) => !one.kind) : [];
  const room = labelled.length ? Math.min(widest(labelled.map((one) => one.name)) + 26, width * 0.36) : 10;
  const tall = Math.max(height, 60 + 17 * labelled.length);
  const yTicks = ticks(low, high, 5);
  const left = 10 + widest(yTicks.map((t) => format(t)));
  const right = width - room;
  const top = 24;
  const bottom = tall - 40;
  const first = Math.min(...xs);
  const last = Math.max(...xs);
  const along = (/** @type {number} */ value) => (log ? Math.log2(value) : value);
  const straight = scale(along(first), along(last), left, right);
  const x = (/** @type {number} */ value) => straight(along(value));
  const y = scale(low - pad, high + pad, bottom, top);
  const xTicks = log ? [...new Set(xs)] : ticks(first, last, Math.max(2, (right - left) / 110));
  return { width, tall, left, right, top, bottom, room, first, last, x, y, xTicks, yTicks, drawn, labelled };
}

/**
 * @param {number} width
 * @param {LineChart} chart
 */
function lineChart(width, chart) {
  const frame = chartFrame(width, chart);
  const { left, right, top, bottom, x, y } = frame;
  const size = { width: Math.max(1, right - left), height: bottom - top };
  const area = s("rect", { x: left, y: top, ...size, fill: "transparent" });
  const cursor = s("line", { class: "axis", y1: top, y2: bottom, visibility: "hidden" });
  const marks = (chart.marks ?? []).map((m) =>
    s("circle", { class: `ring ${m.look}`, cx: x(m.x), cy: y(m.y), r: 4.5 }),
  );
  readout(area, cursor, frame, chart);
  return svg(
    width,
    frame.tall,
    chart.label,
    chartAxes(frame, chart),
    chartLines(frame),
    marks,
    seriesNames(frame),
    cursor,
    area,
  );
}

/**
 * @param {ChartFrame} frame
 * @param {LineChart} chart
 */
function chartAxes(frame, { xLabel, yLabel, format, zero }) {
  const { tall, left, right, bottom, x, y, xTicks, yTicks } = frame;
  const number = (/** @type {number} */ t) => Number(t.toFixed(6)).toLocaleString("en");
  return [
    s("text", { class: "soft", x: 0, y: 12 }, yLabel),
    yTicks.map((t) => [
      s("line", { class: "grid", x1: left, x2: right, y1: y(t), y2: y(t) }),
      s("text", { class: "soft", x: left - 6, y: y(t) + 4, "text-anchor": "end" }, format(t)),
    ]),
    xTicks.map((t) => [
      s("line", { class: "axis", x1: x(t), x2: x(t), y1: bottom, y2: bottom + 4 }),
      s("text", { class: "soft", x: x(t), y: bottom + 18, "text-anchor": "middle" }, number(t)),
    ]),
    s("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
    zero ? s("line", { class: "axis", x1: left, x2: right, y1: y(0), y2: y(0) }) : null,
    s("text", { class: "soft", x: (left + right) / 2, y: tall - 4, "text-anchor": "middle" }, xLabel),
  ];
}

function chartLines(/** @type {ChartFrame} */ { drawn, x, y }) {
  /**
   * @param {Series} one
   * @param {number[]} values
   * @returns {Point[]}
   */
  const points = (one, values) => one.x.map((v, i) => [x(v), y(values[i])]);
  const bands = drawn.map((one) => {
    if (!one.low || !one.high || one.kind) return null;
    const outline = [...points(one, one.high), ...points(one, one.low).reverse()];
    return s("path", { class: `band ${one.look}`, d: `${path(outline)}Z` });
  });
  const lines = drawn.map((one) => {
    const kind = one.kind === "faint" ? "faint" : `line ${one.kind ?? ""}`;
    return s("g", { class: one.look }, s("path", { class: kind, d: path(points(one, one.mid)) }));
  });
  return [bands, lines];
}

// Names at the right end of the lines, moved apart where they would overlap.
function seriesNames(/** @type {ChartFrame} */ { labelled, right, top, bottom, room, y }) {
  const ends = labelled.map((one) => y(one.mid[one.mid.length - 1]));
  const places = spread(ends, 17, top, bottom);
  return labelled.map((one, i) => {
    const leader = s("path", { class: "leader", d: `M${right + 3},${ends[i]}L${right + 14},${places[i]}` });
    const style = { fill: "var(--c)" };
    const name = s("text", { class: "name", x: right + 18, y: places[i] + 4, style }, fit(one.name, room - 20));
    return s("g", { class: one.look }, leader, name);
  });
}

/**
 * Show the values at the step nearest to the pointer.
 * @param {SVGRectElement} area
 * @param {SVGLineElement} cursor
 * @param {ChartFrame} frame
 * @param {LineChart} chart
 */
function readout(area, cursor, { drawn, first, last, x }, { xLabel, format }) {
  const read = drawn.filter((one) => one.kind !== "faint");
  const steps = [...new Set(read.flatMap((one) => one.x))];
  area.addEventListener("pointermove", (event) => {
    if (!steps.length) return;
    const box = area.getBoundingClientRect();
    const wanted = x(first) + ((event.clientX - box.left) / box.width) * (x(last) - x(first));
    const step = steps.reduce((a, b) => (Math.abs(x(b) - wanted) < Math.abs(x(a) - wanted) ? b : a));
    const here = read.filter((one) => one.x.includes(step));
    const rows = here.map((one) => ({ one, value: one.mid[one.x.indexOf(step)] })).sort((a, b) => b.value - a.value);
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, String(x(step)));
    cursor.setAttribute("visibility", "visible");
    const cells = rows.slice(0, 14).map(({ one, value }) => {
      const dash = h("span", { style: { color: "var(--c)", "font-weight": "700" } }, one.kind ? "┄ " : "━ ");
      return h("tr", { class: one.look }, h("td", {}, dash, one.name), h("td", {}, format(value, true)));
    });
    const head = h("div", { class: "soft" }, `${xLabel} ${Number(step.toFixed(3)).toLocaleString("en")}`);
    showTip(event.clientX, event.clientY, head, h("table", {}, cells));
  });
  area.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    hideTip();
  });
}
