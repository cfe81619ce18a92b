// @ts-check
// What a row of the leaderboard shows besides numbers: its interval as a drawing, and details on request.

function boardDetail(/** @type {BoardRow} */ row) {
  const method = D.methods[row.method];
  const best = boardPart().rows.find((r) => r.best);
  const facts = [];
  if (row.verdict && best) {
    const behind = `${plusMinus(row.verdict.difference)} points behind ${nameOf(best.method)}`;
    facts.push(["Against the best", `${behind}, corrected p ${pText(row.verdict.p)}: ${row.verdict.text}.`]);
  }
  if (row.bootstrap && row.bootstrap[1] !== null) {
    const interval = `${METRICS[METRIC].text} ${plusMinus(row.bootstrap)}`;
    facts.push(["New queries too", `${interval}: the interval for new seeds, folds and queries.`]);
  }
  facts.push(["Setting", settingText(method)]);
  if (method.budget) facts.push(["Budget used", budgetText(method.budget)]);
  facts.push(["Seeds", row.seeds.join(", ")]);
  if (method.unequal.length) facts.push(["Unequal", method.unequal.join("; ")]);
  const pairs = facts.map(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]);
  return h("dl", { class: "pairs" }, pairs);
}

function settingText(/** @type {Method} */ { params, trial }) {
  const setting = Object.entries(params)
    .map(([key, value]) => `${key} = ${value}`)
    .join(", ");
  const source = trial === 0 ? " (trial 0: the published setting was best)" : ` (found by trial ${trial})`;
  return (setting || "the published one") + (trial === null ? "" : source);
}

function budgetText(/** @type {NonNullable<Method["budget"]>} */ budget) {
  const { complete, pruned, runs, seconds, train_seconds } = budget;
  const trials = complete + pruned ? `${complete} complete and ${pruned} pruned trials, ` : "";
  const each = `${duration(train_seconds)} per network of the chosen setting`;
  return `${trials}${plural(runs, "network")}, ${duration(seconds)} in total, ${each}`;
}

/** @typedef {{ width: number, x: (value: number) => number }} Frame the common scale of the intervals in a column */

/**
 * @param {string} metric
 * @returns {Frame}
 */
function forestFrame(metric) {
  const intervals = boardPart().rows.flatMap((r) => (r.scores[metric] ? [r.scores[metric]] : []));
  const ends = intervals.flatMap(([mean, half]) => [mean - (half ?? 0), mean + (half ?? 0)]);
  const width = innerWidth <= 760 ? 108 : 158;
  return { width, x: scale(Math.min(...ends), Math.max(...ends), 14, width - 6) };
}

/**
 * A mean and its interval as one small drawing.
 * @param {Interval} interval
 * @param {Frame} frame
 * @param {string} colour
 */
function forest(interval, { width, x }, colour) {
  const [mean, half] = interval;
  const text = plusMinus(interval);
  if (x(mean) < 4) {
    return svg(width, 22, `${text}, further left`, s("path", { class: "hollow", d: "M9,7L3,11L9,15" }));
  }
  const whisker =
    half !== null && s("line", { class: "whisker", x1: x(mean - half), x2: x(mean + half), y1: 11, y2: 11 });
  const style = colour ? null : { "--c": "var(--soft)" };
  const dot = s("circle", { class: half === null ? "hollow" : "dot", cx: x(mean), cy: 11, r: 4, style });
  const line = s("line", { class: "grid", x1: 0, x2: width, y1: 11, y2: 11 });
  return svg(width, 22, text, s("g", { class: colour }, line, whisker, dot));
}
