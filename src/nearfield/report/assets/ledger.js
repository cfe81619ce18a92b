// The bias ledger: a slope from each method's honest place to its biased one.

function biasSection() {
  const node = at("bias-chart");
  const worst = [...D.ledger].filter((e) => e.name !== "chance" && e.tau !== null).sort((a, b) => a.tau - b.tau)[0];
  const state = { entry: worst ?? D.ledger[0] };
  const moved = (p) => p.honest[1] - p.biased[1];  // places won
  const draw = responsive(node, (width) => {
    const { places } = state.entry;
    const count = places.length, step = 22, top = 34, height = top + step * count + 6;
    const names = places.map((p) => nameOf(p.method));
    const side = Math.min(Math.max(...names.map((n) => textWidth(n))) + 62, width * 0.38);
    const from = side, to = width - side;
    const after = range(count).sort((a, b) => places[a].biased[1] - places[b].biased[1] || places[b].biased[0] - places[a].biased[0]);
    const row = new Map(after.map((i, n) => [i, n]));
    const y = (n) => top + step * n + step / 2;
    const largest = Math.max(1, ...places.map((p) => Math.abs(moved(p))));
    const rank = (r) => (Number.isInteger(r) ? String(r) : r.toFixed(1));
    return svg(width, height, `Honest and biased places of ${count} methods`,
      s("text", { class: "soft", x: from, y: 16, "text-anchor": "end" }, "honest"), s("text", { class: "soft", x: to, y: 16 }, "biased"),
      places.map((p, i) => {
        const move = moved(p), n = row.get(i);
        const kind = move > 0 ? "up" : move < 0 ? "down" : "same";
        const note = `${nameOf(p.method)}: place ${rank(p.honest[1])} with ${percent(p.honest[0], 2)}, then ${rank(p.biased[1])} with ${percent(p.biased[0], 2)}`;
        const end = state.entry.in_turns ? p.biased[1] - 1 : n;  // in turns, each has a table of its own
        const width_ = 1.25 + (3.25 * Math.abs(move)) / largest;
        return s("g", { class: kind, onpointermove: (e) => showTip(e.clientX, e.clientY, note), onpointerleave: hideTip },
          s("path", { class: "line", d: `M${from + 8},${y(i)}C${(from + to) / 2},${y(i)} ${(from + to) / 2},${y(end)} ${to - 18},${y(end)}L${to - 8},${y(n)}`, style: { "stroke-width": width_ } }),
          s("circle", { class: "dot", cx: from + 8, cy: y(i), r: 3.5 }), s("circle", { class: "dot", cx: to - 8, cy: y(n), r: 3.5 }),
          s("text", { x: from - 30, y: y(i) + 4, "text-anchor": "end" }, fit(names[i], side - 34)), s("text", { class: "soft", x: from - 6, y: y(i) + 4, "text-anchor": "end" }, rank(p.honest[1])),
          s("text", { class: "soft", x: to + 6, y: y(n) + 4 }, rank(p.biased[1])), s("text", { x: to + 30, y: y(n) + 4 }, fit(names[i], side - 34 - (move ? 26 : 0))),
          move ? s("text", { x: width - 1, y: y(n) + 4, "text-anchor": "end", style: { fill: "var(--c)", "font-weight": 600 } }, `${move > 0 ? "▲" : "▼"}${rank(Math.abs(move))}`) : null);
      }));
  });
  function leader({ leaders, places, in_turns }) {
    if (in_turns) return leaders.length ? `${leaders.length} of ${places.length} lead in their turn` : "none leads in its turn";
    if (leaders.length > 1) return `${leaders.length} share the lead`;
    return leaders[0] === places[0].method ? "the leader stays" : `${nameOf(leaders[0])} leads`;
  }
  function words() {
    const { entry } = state;
    const far = entry.places.reduce((a, b) => (Math.abs(moved(b)) > Math.abs(moved(a)) ? b : a));
    at("bias-words").replaceChildren(h("b", { style: { color: "var(--ink)" } }, entry.words), ` Against: ${entry.baseline}. `,
      moved(far) ? `${nameOf(far.method)} moves farthest, ${Math.abs(moved(far))} place${Math.abs(moved(far)) === 1 ? "" : "s"} ${moved(far) > 0 ? "up" : "down"}. ` : "Nobody moves. ",
      entry.mean_gain === null ? "" : `Scores change by ${signed(entry.mean_gain, 2)} points on average. `,
      entry.missing.length ? `Without ${entry.missing.join(", ")}, which lack the runs.` : "");
  }
  const tau = (entry) => (entry.tau === null ? "–" : entry.tau.toFixed(2));
  at("bias-controls").replaceChildren(h("fieldset", { class: "cards" }, h("legend", { class: "unseen" }, "Habit"), D.ledger.map((entry) => h("label", {},
    h("input", { type: "radio", name: "habit", checked: entry === state.entry, onchange: () => { state.entry = entry; words(); draw(); } }),
    h("span", {}, entry.name), h("span", { class: "tau" }, `τ ${tau(entry)}`), h("span", { class: "soft" }, leader(entry))))));
  words();
}
