// @ts-check
// The bias ledger: a line from each method's rank under a fair comparison to its rank under a pitfall of reporting.

function biasSection() {
  const informative = D.ledger.filter((e) => e.name !== "chance" && e.tau !== null);
  const worst = informative.sort((a, b) => (a.tau ?? 0) - (b.tau ?? 0))[0];
  const state = { entry: worst ?? D.ledger[0] };
  const draw = responsive(at("bias-chart"), (width) => ledgerChart(width, state.entry));
  const describe = () => at("bias-words").replaceChildren(...ledgerText(state.entry));
  const cards = D.ledger.map((entry) => {
    const choosing = () => {
      state.entry = entry;
      describe();
      draw();
    };
    return h(
      "label",
      {},
      h("input", { type: "radio", name: "pitfall", checked: entry === state.entry, onchange: choosing }),
      h("span", {}, entry.name),
      h("span", { class: "tau" }, `τ ${entry.tau === null ? "–" : entry.tau.toFixed(2)}`),
      h("span", { class: "soft" }, leaderText(entry)),
    );
  });
  const legend = h("legend", { class: "unseen" }, "Pitfall");
  at("bias-controls").replaceChildren(h("fieldset", { class: "cards" }, legend, cards));
  describe();
}

const ranksGained = (/** @type {LedgerPlace} */ p) => p.honest[1] - p.biased[1];
const rankText = (/** @type {number} */ r) => (Number.isInteger(r) ? String(r) : r.toFixed(1));

/**
 * @param {number} width
 * @param {LedgerEntry} entry
 */
function ledgerChart(width, entry) {
  const { places, in_turns, sides } = entry;
  const count = places.length;
  const top = 34;
  const step = 22;
  const side = Math.min(widest(places.map((p) => nameOf(p.method))) + 62, width * 0.38);
  const y = (/** @type {number} */ n) => top + step * n + step / 2;
  const after = range(count).sort(
    (a, b) => places[a].biased[1] - places[b].biased[1] || places[b].biased[0] - places[a].biased[0],
  );
  const row = new Map(after.map((i, n) => [i, n]));
  const largest = Math.max(1, ...places.map((p) => Math.abs(ranksGained(p))));
  const lines = places.map((p, i) => {
    const n = got(row, i);
    const end = in_turns ? p.biased[1] - 1 : n; // in turns, each method has a ranking of its own
    const thickness = 1.25 + (3.25 * Math.abs(ranksGained(p))) / largest;
    return ledgerLine(p, { width, side, from: y(i), turn: y(end), to: y(n), thickness });
  });
  return svg(
    width,
    top + step * count + 6,
    `Ranks of ${count} methods: ${sides[0]} and ${sides[1]}`,
    s("text", { class: "soft", x: side, y: 16, "text-anchor": "end" }, sides[0]),
    s("text", { class: "soft", x: width - side, y: 16 }, sides[1]),
    lines,
  );
}

/**
 * @param {LedgerPlace} p
 * @param {{ width: number, side: number, from: number, turn: number, to: number, thickness: number }} place
 */
function ledgerLine(p, { width, side, from, turn, to, thickness }) {
  const move = ranksGained(p);
  const name = nameOf(p.method);
  const [left, right] = [side, width - side];
  const middle = (left + right) / 2;
  const d = `M${left + 8},${from}C${middle},${from} ${middle},${turn} ${right - 18},${turn}L${right - 8},${to}`;
  const before = `rank ${rankText(p.honest[1])} with ${percent(p.honest[0], 2)}`;
  const note = `${name}: ${before}, then ${rankText(p.biased[1])} with ${percent(p.biased[0], 2)}`;
  const moved = { x: width - 1, y: to + 4, "text-anchor": "end", style: { fill: "var(--c)", "font-weight": 600 } };
  return s(
    "g",
    {
      class: move > 0 ? "up" : move < 0 ? "down" : "same",
      onpointermove: (e) => showTip(e.clientX, e.clientY, note),
      onpointerleave: hideTip,
    },
    s("path", { class: "line", d, style: { "stroke-width": thickness } }),
    s("circle", { class: "dot", cx: left + 8, cy: from, r: 3.5 }),
    s("circle", { class: "dot", cx: right - 8, cy: to, r: 3.5 }),
    s("text", { x: left - 30, y: from + 4, "text-anchor": "end" }, fit(name, side - 34)),
    s("text", { class: "soft", x: left - 6, y: from + 4, "text-anchor": "end" }, rankText(p.honest[1])),
    s("text", { class: "soft", x: right + 6, y: to + 4 }, rankText(p.biased[1])),
    s("text", { x: right + 30, y: to + 4 }, fit(name, side - 34 - (move ? 26 : 0))),
    move !== 0 && s("text", moved, `${move > 0 ? "▲" : "▼"}${rankText(Math.abs(move))}`),
  );
}

function leaderText(/** @type {LedgerEntry} */ { leaders, places, in_turns }) {
  const turns = `${leaders.length} of ${places.length} lead in their turn`;
  if (in_turns) return leaders.length ? turns : "none leads in its turn";
  if (leaders.length > 1) return `${leaders.length} share the lead`;
  return leaders[0] === places[0].method ? "the leader stays" : `${nameOf(leaders[0])} leads`;
}

function ledgerText(/** @type {LedgerEntry} */ entry) {
  const far = entry.places.reduce((a, b) => (Math.abs(ranksGained(b)) > Math.abs(ranksGained(a)) ? b : a));
  const move = ranksGained(far);
  const ranks = `${rankText(Math.abs(move))} rank${Math.abs(move) === 1 ? "" : "s"} ${move > 0 ? "up" : "down"}`;
  return present([
    h("b", { style: { color: "var(--ink)" } }, entry.words),
    ` Compared with: ${entry.baseline}. `,
    move ? `${nameOf(far.method)} moves farthest, ${ranks}. ` : "No method moves. ",
    entry.mean_gain !== null && `Scores change by ${signed(entry.mean_gain, 2)} points on average. `,
    entry.missing.length > 0 && `Without ${entry.missing.join(", ")}, which lack the runs.`,
  ]);
}
