// @ts-check
// The trials of each hyper-parameter search: the score against every parameter.

function searchSection() {
  const found = new Map(D.searches.map((one) => [one.method, one]));
  const methods = byPlace(found.keys());
  const show = (/** @type {number} */ method) => {
    const one = got(found, method);
    const params = [...one.params].sort((a, b) => (b.importance ?? -1) - (a.importance ?? -1));
    at("search-charts").replaceChildren(...params.map((param) => paramFigure(one, param)));
    at("search-caption").textContent = searchCaption(one);
  };
  at("search-controls").replaceChildren(choose("Method", methodOptions(methods), methods[0], show));
  show(methods[0]);
}

const paramName = (/** @type {string} */ key) => key.replace("method.params.", "");

/**
 * @param {Search} one
 * @param {SearchParam} param
 */
function paramFigure(one, param) {
  const { key, importance } = param;
  const box = h("div");
  const bar = importance !== null && h("i", { style: { width: `${100 * importance}%` } });
  const meter = h("span", { class: "meter", "aria-hidden": "true" }, bar);
  const text = importance === null ? "importance: too few trials" : ["importance", meter, importance.toFixed(2)];
  const caption = h("div", { class: "caption", style: { margin: "0 0 4px" } }, text);
  const figure = h("div", {}, h("h4", {}, paramName(key)), caption, box);
  responsive(box, (width) => paramChart(width, one, param));
  return figure;
}

function searchCaption(/** @type {Search} */ one) {
  const value = (/** @type {number | null} */ number) => one.trials.find((t) => t.number === number)?.value ?? null;
  const published = value(0);
  const best = value(one.best);
  const metric = METRICS[D.select_by]?.text ?? D.select_by;
  const gain =
    published === null || best === null
      ? ""
      : `The search raised validation ${metric} from ${percent(published, 2)} (published setting, diamond) ` +
        `to ${percent(best, 2)} (ring). `;
  const pruned = one.trials.length - one.complete;
  const stopped = pruned ? `, ${pruned} stopped early (hollow: the score of their finished folds)` : "";
  const chance =
    one.chance === null
      ? ""
      : ` With so many trials, a parameter without influence has |ρ| below ${one.chance.toFixed(2)} in 95 % of cases.`;
  return `${gain}${plural(one.complete, "complete trial")}${stopped}.${chance}`;
}

/** @typedef {{ trial: Trial, x: number, y: number }} TrialPoint */

/**
 * The trials as points, and the marks of the horizontal axis: numbers, logarithms, or words in order.
 * @param {Search} one
 * @param {SearchParam} param
 * @param {number} width
 */
function trialPoints(one, { key, log }, width) {
  const known = one.trials.filter((t) => t.params[key] !== undefined && (t.value ?? t.reached) !== null);
  const numeric = known.every((t) => typeof t.params[key] === "number");
  const words = [...new Set(known.map((t) => String(t.params[key])))].sort();
  const position = (/** @type {string | number | boolean} */ value) => {
    if (!numeric) return words.indexOf(String(value));
    return log && Number(value) > 0 ? Math.log10(Number(value)) : Number(value);
  };
  /** @type {TrialPoint[]} */
  const points = known.map((t) => ({ trial: t, x: position(t.params[key]), y: t.value ?? t.reached ?? 0 }));
  const xs = points.map((p) => p.x);
  const [low, high] = [Math.min(...xs), Math.max(...xs)];
  const room = (high - low) * 0.06 || 0.5;
  const marks = !numeric
    ? words.map((word, i) => ({ at: i, text: word }))
    : log
      ? logTicks(low - room, high + room)
      : ticks(low, high, Math.max(2, width / 90)).map((t) => ({ at: t, text: short(t) }));
  return { points, marks, low: low - room, high: high + room };
}

/**
 * @param {number} width
 * @param {Search} one
 * @param {SearchParam} param
 */
function paramChart(width, one, param) {
  const { points, marks, low, high } = trialPoints(one, param, width);
  if (!points.length) {
    return svg(width, 24, "no trials", s("text", { class: "soft", x: 0, y: 16 }, "no finished trial"));
  }
  const ys = points.map((p) => p.y);
  const air = (Math.max(...ys) - Math.min(...ys)) * 0.1 || 0.01;
  const [bottomValue, topValue] = [Math.min(...ys) - air, Math.max(...ys) + air];
  const height = 190;
  const left = 42;
  const right = width - 12;
  const bottom = height - 26;
  const x = scale(low, high, left, right);
  const y = scale(bottomValue, topValue, bottom, 10);
  const grid = ticks(bottomValue, topValue, 4).map((t) => [
    s("line", { class: "grid", x1: left, x2: right, y1: y(t), y2: y(t) }),
    s("text", { class: "soft", x: left - 6, y: y(t) + 4, "text-anchor": "end" }, inPercent(t)),
  ]);
  const axis = marks.map((mark) => [
    s("line", { class: "axis", x1: x(mark.at), x2: x(mark.at), y1: bottom, y2: bottom + 4 }),
    s("text", { class: "soft", x: x(mark.at), y: bottom + 18, "text-anchor": "middle" }, mark.text),
  ]);
  const line = s("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom });
  const dots = points.map((p) => trialMark(p.trial, x(p.x), y(p.y), p.trial.number === one.best));
  return svg(width, height, `Validation score against ${param.key}`, grid, axis, line, dots);
}

/**
 * One trial: a diamond for the published setting, a ring around the best.
 * @param {Trial} trial
 * @param {number} cx
 * @param {number} cy
 * @param {boolean} best
 */
function trialMark(trial, cx, cy, best) {
  const rows = Object.entries(trial.params).map(([key, value]) =>
    h("tr", {}, h("td", {}, paramName(key)), h("td", {}, short(value))),
  );
  const score = percent(trial.value ?? trial.reached, 2);
  const first = h("tr", {}, h("td", {}, trial.value === null ? "reached" : "score"), h("td", {}, score));
  const head = h("b", {}, `Trial ${trial.number}`);
  const props = {
    class: trial.value === null ? "hollow" : "dot",
    onpointerenter: (/** @type {PointerEvent} */ e) => showTip(e.clientX, e.clientY, head, h("table", {}, first, rows)),
    onpointerleave: hideTip,
  };
  const diamond = `M${cx},${cy - 6}L${cx + 6},${cy}L${cx},${cy + 6}L${cx - 6},${cy}Z`;
  const ring = { cx, cy, r: 9, fill: "none", stroke: "var(--ink)", "stroke-width": 1.5 };
  return [
    best && s("circle", ring),
    trial.number === 0 ? s("path", { ...props, d: diamond }) : s("circle", { ...props, cx, cy, r: 4.5 }),
  ];
}

/**
 * Round numbers between two exponents of ten: every decade, or 1, 2 and 5 of each.
 * @param {number} low
 * @param {number} high
 */
function logTicks(low, high) {
  const steps = high - low > 2 ? [1] : [1, 2, 5];
  const decades = range(Math.ceil(high) - Math.floor(low) + 1).map((i) => 10 ** (Math.floor(low) + i));
  const values = decades.flatMap((decade) => steps.map((m) => m * decade));
  return values.map((v) => ({ at: Math.log10(v), text: short(v) })).filter((t) => t.at >= low && t.at <= high);
}
