// A line chart: series with bands, a readout under the pointer.

// series: {name, look, x, mid, low, high, kind}; kind "faint" and "oracle" are drawn without bands and names.
function lineChart(width, { series, xLabel, yLabel, height, format, named, marks = [], label, zero = false }) {
  const drawn = series.filter((one) => one.x.length);
  const xs = drawn.flatMap((one) => one.x), ys = drawn.flatMap((one) => [...(one.low ?? one.mid), ...(one.high ?? one.mid)]);
  let low = Math.min(...ys, ...(zero ? [0] : [])), high = Math.max(...ys, ...(zero ? [0] : []));
  if (high - low < 1e-9) { low -= 0.01; high += 0.01; }
  const pad = (high - low) * 0.04;
  const labelled = named ? drawn.filter((one) => !one.kind) : [];
  const room = labelled.length ? Math.min(Math.max(...labelled.map((one) => textWidth(one.name))) + 26, width * 0.36) : 10;
  const tall = Math.max(height, 60 + 17 * labelled.length);
  const yTicks = ticks(low, high, 5);
  const left = 10 + Math.max(...yTicks.map((t) => textWidth(format(t)))), right = width - room, top = 24, floor = tall - 40;
  const first = Math.min(...xs), last = Math.max(...xs);
  const x = scale(first, last, left, right), y = scale(low - pad, high + pad, floor, top);
  const ends = labelled.map((one) => y(one.mid[one.mid.length - 1]));
  const places = spread(ends, 17, top, floor);
  const xTicks = ticks(first, last, Math.max(2, (right - left) / 110));
  const cursor = s("line", { class: "axis", y1: top, y2: floor, visibility: "hidden" });
  const area = s("rect", { x: left, y: top, width: Math.max(1, right - left), height: floor - top, fill: "transparent" });
  const chart = svg(width, tall, label,
    s("text", { class: "soft", x: 0, y: 12 }, yLabel),
    yTicks.map((t) => [s("line", { class: "grid", x1: left, x2: right, y1: y(t), y2: y(t) }),
      s("text", { class: "soft", x: left - 6, y: y(t) + 4, "text-anchor": "end" }, format(t))]),
    xTicks.map((t) => [s("line", { class: "axis", x1: x(t), x2: x(t), y1: floor, y2: floor + 4 }),
      s("text", { class: "soft", x: x(t), y: floor + 18, "text-anchor": "middle" }, Number(t.toFixed(6)).toLocaleString("en"))]),
    s("line", { class: "axis", x1: left, x2: right, y1: floor, y2: floor }),
    zero ? s("line", { class: "axis", x1: left, x2: right, y1: y(0), y2: y(0) }) : null,
    s("text", { class: "soft", x: (left + right) / 2, y: tall - 4, "text-anchor": "middle" }, xLabel),
    drawn.filter((one) => one.low && !one.kind).map((one) => s("path", { class: `band ${one.look}`,
      d: path([...one.x.map((v, i) => [x(v), y(one.high[i])]), ...one.x.map((v, i) => [x(v), y(one.low[i])]).reverse()]) + "Z" })),
    drawn.map((one) => s("g", { class: one.look }, s("path", { class: one.kind === "faint" ? "faint" : `line ${one.kind ?? ""}`,
      d: path(one.x.map((v, i) => [x(v), y(one.mid[i])])) }))),
    marks.map((m) => s("circle", { class: `ring ${m.look}`, cx: x(m.x), cy: y(m.y), r: 4.5 })),
    labelled.map((one, i) => s("g", { class: one.look },
      s("path", { class: "leader", d: `M${right + 3},${ends[i]}L${right + 14},${places[i]}` }),
      s("text", { class: "name", x: right + 18, y: places[i] + 4, style: { fill: "var(--c)" } }, fit(one.name, room - 20)))),
    cursor, area);
  area.addEventListener("pointermove", (event) => {
    const box = area.getBoundingClientRect();
    const value = first + ((event.clientX - box.left) / box.width) * (last - first);
    const steps = [...new Set(drawn.filter((one) => one.kind !== "faint").flatMap((one) => one.x))];
    if (!steps.length) return;
    const step = steps.reduce((a, b) => (Math.abs(b - value) < Math.abs(a - value) ? b : a));
    const rows = drawn.filter((one) => one.kind !== "faint" && one.x.includes(step)).map((one) => ({ one, value: one.mid[one.x.indexOf(step)] })).sort((a, b) => b.value - a.value);
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(step));
    cursor.setAttribute("visibility", "visible");
    showTip(event.clientX, event.clientY, h("div", { class: "soft" }, `${xLabel} ${Number(step.toFixed(3)).toLocaleString("en")}`),
      h("table", {}, rows.slice(0, 14).map(({ one, value: v }) => h("tr", { class: one.look }, h("td", {}, h("span", { style: { color: "var(--c)", "font-weight": "700" } }, one.kind ? "┄ " : "━ "), one.name), h("td", {}, format(v, true))))));
  });
  area.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); hideTip(); });
  return chart;
}
const inPercent = (value, exact) => (exact ? percent(value, 2) : Number((100 * value).toFixed(4)).toString());
