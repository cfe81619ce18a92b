// Learning curves and the trials of each search.

function curvesSection() {
  const found = new Map(D.curves.map((c) => [c.method, c]));
  const methods = byPlace(found.keys());
  const keys = D.metrics.map((m) => m.key).filter((key) => D.curves.some((c) => key in c.val.bands));
  const state = { metric: keys.includes(D.select_by) ? D.select_by : keys[0], on: new Set(methods.slice(0, 5)), oracle: false };
  const hasOracle = D.curves.some((c) => c.oracle.steps.length);
  const draw = responsive(at("curve-chart"), (width) => {
    const { metric } = state;
    const bands = (curve, name) => curve[name].bands[metric];
    const usable = methods.filter((m) => bands(found.get(m), "val"));
    const line = (m, kind, name) => {
      const curve = found.get(m), [mid, low, high] = bands(curve, name);
      return { name: nameOf(m) + (kind === "oracle" ? ", test" : ""), look: look(m), x: curve[name].steps, mid, low, high, kind };
    };
    const on = usable.filter((m) => state.on.has(m));
    const series = [...usable.filter((m) => !state.on.has(m)).map((m) => line(m, "faint", "val")), ...on.map((m) => line(m, undefined, "val")),
      ...(state.oracle ? on.filter((m) => bands(found.get(m), "oracle")).map((m) => line(m, "oracle", "oracle")) : [])];
    const marks = on.map((m) => {
      const { val, chosen } = found.get(m);
      const i = val.steps.reduce((best, step, n) => (Math.abs(step - chosen) < Math.abs(val.steps[best] - chosen) ? n : best), 0);
      return { look: look(m), x: val.steps[i], y: val.bands[metric][0][i] };
    });
    return lineChart(width, { series, marks, xLabel: "step", yLabel: `validation ${METRICS[metric].text}, %`, height: width < 600 ? 320 : 420,
      format: inPercent, named: width >= 600, label: `Validation ${METRICS[metric].text} in percent by training step` });
  });
  const chips = methods.map((m) => {
    const chip = h("button", { type: "button", class: `chip ${look(m)}`, onclick: () => {
      if (!state.on.delete(m)) state.on.add(m);
      pressed(chip, state.on.has(m));
      draw();
    } }, h("span", { class: "swatch" }), nameOf(m));
    pressed(chip, state.on.has(m));
    chip.method = m;
    return chip;
  });
  const select = (wanted) => { state.on = new Set(wanted); chips.forEach((c) => pressed(c, state.on.has(c.method))); draw(); };
  at("curve-chips").replaceChildren(...chips);
  at("curve-controls").replaceChildren(...[
    keys.length > 1 ? choose("Score", keys.map((key) => ({ value: key, text: METRICS[key].text })), state.metric, (key) => { state.metric = key; draw(); }) : null,
    methods.length > 5 ? h("div", { class: "group" }, button("First five", () => select(methods.slice(0, 5))), button("All", () => select(methods)), button("None", () => select([]))) : null,
    hasOracle ? segments("Test classes, which chose nothing", [{ value: false, text: "Hide" }, { value: true, text: "Show dashed" }], false, (on) => { state.oracle = on; draw(); }) : null,
  ].filter(Boolean));
}

function searchSection() {
  const found = new Map(D.searches.map((one) => [one.method, one]));
  const methods = byPlace(found.keys());
  const show = (method) => {
    const one = found.get(method);
    const params = [...one.params].sort((a, b) => (b.importance ?? -1) - (a.importance ?? -1));
    at("search-charts").replaceChildren(...params.map((param) => {
      const box = h("div");
      const weight = param.importance;
      const figure = h("div", {}, h("h4", {}, param.key.replace("method.params.", "")), h("div", { class: "caption", style: { margin: "0 0 4px" } },
        weight === null ? "importance: too few numbers to say" : ["importance", h("span", { class: "meter", "aria-hidden": "true" }, h("i", { style: { width: `${100 * weight}%` } })), weight.toFixed(2)]), box);
      responsive(box, (width) => slice(width, one, param));
      return figure;
    }));
    const published = one.trials.find((t) => t.number === 0)?.value ?? null, best = one.trials.find((t) => t.number === one.best)?.value ?? null;
    const gain = published !== null && best !== null ? `The search lifted validation ${METRICS[D.select_by]?.text ?? D.select_by} from ${percent(published, 2)} (published setting, diamond) to ${percent(best, 2)} (ring). ` : "";
    const pruned = one.trials.length - one.complete;
    at("search-caption").replaceChildren(`${gain}${one.complete} complete trials${pruned ? `, ${pruned} stopped early (hollow: what their first folds reached)` : ""}. ` +
      (one.chance === null ? "" : `A parameter without any influence has |ρ| below ${one.chance.toFixed(2)} 95 times of 100 with so many trials.`));
  };
  at("search-controls").replaceChildren(choose("Method", methodOptions(methods), methods[0], show));
  show(methods[0]);
}

function slice(width, one, { key, log }) {
  const trials = one.trials.map((t) => ({ ...t, x: t.params[key], y: t.value ?? t.reached })).filter((t) => t.x !== undefined && t.y !== null);
  const numeric = trials.every((t) => typeof t.x === "number");
  const words = [...new Set(trials.map((t) => String(t.x)))].sort();
  const value = (t) => (!numeric ? words.indexOf(String(t.x)) : log && t.x > 0 ? Math.log10(t.x) : t.x);
  const height = 190, left = 42, right = width - 12, top = 10, floor = height - 26;
  if (!trials.length) return svg(width, 24, "no trials", s("text", { class: "soft", x: 0, y: 16 }, "no finished trial"));
  const xs = trials.map(value), ys = trials.map((t) => t.y);
  const room = (Math.max(...xs) - Math.min(...xs)) * 0.06 || 0.5, air = (Math.max(...ys) - Math.min(...ys)) * 0.1 || 0.01;
  const x = scale(Math.min(...xs) - room, Math.max(...xs) + room, left, right), y = scale(Math.min(...ys) - air, Math.max(...ys) + air, floor, top);
  const marks = !numeric ? words.map((w, i) => [i, w]) : log ? logTicks(Math.min(...xs) - room, Math.max(...xs) + room) : ticks(Math.min(...xs), Math.max(...xs), Math.max(2, width / 90)).map((t) => [t, short(t)]);
  const point = (t) => {
    const [cx, cy] = [x(value(t)), y(t.y)];
    const show = (event) => showTip(event.clientX ?? 0, event.clientY ?? 0, h("b", {}, `Trial ${t.number}`), h("table", {}, h("tr", {}, h("td", {}, t.value === null ? "reached" : "score"), h("td", {}, percent(t.y, 2))),
      Object.entries(t.params).map(([k, v]) => h("tr", {}, h("td", {}, k.replace("method.params.", "")), h("td", {}, short(v))))));
    const on = { onpointerenter: show, onpointerleave: hideTip };
    const shape = t.number === 0 ? s("path", { class: t.value === null ? "hollow" : "dot", d: `M${cx},${cy - 6}L${cx + 6},${cy}L${cx},${cy + 6}L${cx - 6},${cy}Z`, ...on })
      : s("circle", { class: t.value === null ? "hollow" : "dot", cx, cy, r: 4.5, ...on });
    return [t.number === one.best ? s("circle", { cx, cy, r: 9, fill: "none", stroke: "var(--ink)", "stroke-width": 1.5 }) : null, shape];
  };
  return svg(width, height, `Validation score against ${key}`,
    ticks(Math.min(...ys) - air, Math.max(...ys) + air, 4).map((t) => [s("line", { class: "grid", x1: left, x2: right, y1: y(t), y2: y(t) }),
      s("text", { class: "soft", x: left - 6, y: y(t) + 4, "text-anchor": "end" }, inPercent(t))]),
    marks.map(([t, text]) => [s("line", { class: "axis", x1: x(t), x2: x(t), y1: floor, y2: floor + 4 }),
      s("text", { class: "soft", x: x(t), y: floor + 18, "text-anchor": "middle" }, text)]),
    s("line", { class: "axis", x1: left, x2: right, y1: floor, y2: floor }),
    trials.map(point));
}

// Round numbers between two powers of ten given by their exponents: every decade, or 1, 2 and 5 of each.
function logTicks(low, high) {
  const steps = high - low > 2 ? [1] : [1, 2, 5];
  const all = range(Math.ceil(high) - Math.floor(low) + 1).flatMap((i) => steps.map((m) => m * 10 ** (Math.floor(low) + i)));
  return all.map((v) => [Math.log10(v), short(v)]).filter(([t]) => t >= low && t <= high);
}
