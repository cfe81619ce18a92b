// The gallery: what was found for each query, and the queries that one method wins and another loses.

const answers = D.gallery ? new Map(D.gallery.methods.map((one) => [one.method, {
  scores: once(() => shares(one.scores)),
  near: once(() => unpack(one.near)),
  classScores: once(() => shares(one.class_scores)),
  classRight: once(() => shares(one.class_right)),
  confusions: once(() => unpack(one.confusions)),
}])) : new Map();

function gallerySection() {
  const queries = unpack(D.gallery.queries), k = D.gallery.neighbours;
  const methods = byPlace(answers.keys());
  const state = { a: methods[0], b: null, order: "worst", outcome: "onlyA", text: "" };
  const label = (i) => items.labels[queries[i]];
  const first = (method, i) => items.labels[answers.get(method).near()[i * k]] === label(i);
  const all = queries.length === D.gallery.total;
  at("gallery-lead").textContent = `Test images as queries and the ${k} nearest others, seed ${D.gallery.seed}${D.gallery.part === "concatenated" ? ", embeddings of all folds side by side" : ""}. ` +
    (all ? "" : `${whole(queries.length)} of ${whole(D.gallery.total)} queries are here: by turns the hardest for all methods, the most disputed between methods, and any. `);

  const OUTCOMES = [
    { key: "onlyA", text: () => `${nameOf(state.a)} right, ${nameOf(state.b)} wrong`, test: (a, b) => a && !b, sort: (d) => -d },
    { key: "onlyB", text: () => `${nameOf(state.b)} right, ${nameOf(state.a)} wrong`, test: (a, b) => b && !a, sort: (d) => d },
    { key: "both", text: () => "both right", test: (a, b) => a && b, sort: (d) => -Math.abs(d) },
    { key: "neither", text: () => "both wrong", test: (a, b) => !a && !b, sort: (d) => -Math.abs(d) },
  ];
  function draw() {
    const scoresA = answers.get(state.a).scores();
    const words = state.text.toLowerCase();
    let found = range(queries.length).filter((i) => !Number.isNaN(scoresA[i]) && (!words || className(label(i)).toLowerCase().includes(words)));
    const total = found.length;
    const box = at("gallery-outcomes");
    if (state.b === null) {
      box.replaceChildren();
      found.sort((p, q) => (state.order === "worst" ? scoresA[p] - scoresA[q] : scoresA[q] - scoresA[p]));
      at("gallery-caption").textContent = `${whole(total)} queries, ${state.order} average precision first. A solid frame and ✓: same class; a dashed frame and ✗: another class.`;
    } else {
      const scoresB = answers.get(state.b).scores();
      const pairs = found.map((i) => [i, first(state.a, i), first(state.b, i), scoresA[i] - scoresB[i]]);
      box.replaceChildren(h("div", { class: "outcomes", role: "group", "aria-label": "Which queries" }, OUTCOMES.map((o) => {
        const count = pairs.filter(([, a, b]) => o.test(a, b)).length;
        const node = button([h("b", {}, `${whole(count)}`), o.text()], () => { state.outcome = o.key; draw(); at(`outcome-${o.key}`).focus(); }, { id: `outcome-${o.key}` });
        pressed(node, o.key === state.outcome);
        return node;
      })));
      const outcome = OUTCOMES.find((o) => o.key === state.outcome);
      found = pairs.filter(([, a, b]) => outcome.test(a, b)).sort((p, q) => outcome.sort(p[3]) - outcome.sort(q[3])).map(([i]) => i);
      at("gallery-caption").textContent = `${whole(found.length)} of ${whole(total)} queries, by their nearest image; largest difference in average precision first.`;
    }
    lazily(at("gallery-list"), found, row, 8, "queries");
    if (!found.length) at("gallery-list").append(h("p", { class: "soft" }, "No query is like this."));
  }
  function row(i) {
    const item = queries[i];
    return h("article", { class: "query" },
      h("div", { class: "asked" }, thumb(item, `query of class ${className(label(i))}`), h("div", {}, h("span", { class: "soft" }, "Query"), about(item))),
      h("div", {}, [state.a, state.b].filter((m) => m !== null).map((method) => strip(method, i))));
  }
  function strip(method, i) {
    const near = answers.get(method).near(), score = answers.get(method).scores()[i];
    return h("div", { class: "strip" }, h("p", {}, h("b", {}, nameOf(method)), h("span", { class: "soft" }, ` · average precision ${percent(score)} %`)),
      h("ol", {}, range(k).map((n) => {
        const item = near[i * k + n], right = items.labels[item] === label(i);
        const name = className(items.labels[item]);
        return h("li", { class: right ? "right" : "wrong", onpointermove: (e) => showTip(e.clientX, e.clientY, about(item)), onpointerleave: hideTip },
          thumb(item, `${right ? "right" : "wrong"}: ${name}`), h("span", {}, h("span", { class: "mark" }, right ? "✓ " : "✗ "), name));
      })));
  }
  const filter = search("Class", "part of a class name", (text) => { state.text = text; draw(); });
  const order = segments("Order", [{ value: "worst", text: "Worst first" }, { value: "best", text: "Best first" }], "worst", (value) => { state.order = value; draw(); });
  const none = { value: null, text: "– nothing –" };
  const chooseB = () => choose("Against", [none, ...methodOptions(methods.filter((m) => m !== state.a))], state.b, (m) => { state.b = m; order.hidden = m !== null; refresh(); });
  let against = chooseB();
  const refresh = () => { draw(); classesSection(state.a, state.b, showClass); };
  const showClass = (name) => {
    filter.querySelector("input").value = state.text = name;
    draw();
    at("gallery-controls").scrollIntoView({ behavior: calm.matches ? "auto" : "smooth", block: "start" });
  };
  at("gallery-controls").replaceChildren(...[choose("Method", methodOptions(methods), state.a, (m) => {
    state.a = m;
    if (state.b === m) state.b = null;
    order.hidden = state.b !== null;
    const next = chooseB();
    against.replaceWith(next);
    against = next;
    refresh();
  }), methods.length > 1 ? against : null, order, filter].filter(Boolean));
  refresh();
}
