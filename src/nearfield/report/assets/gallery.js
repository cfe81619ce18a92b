// @ts-check
// The retrieval gallery: queries with their nearest images, of one method or of two.

const answers = new Map(
  (D.gallery?.methods ?? []).map((one) => [
    one.method,
    {
      scores: once(() => shares(one.scores)),
      near: once(() => unpack(one.near)),
      classScores: once(() => shares(one.class_scores)),
      classRight: once(() => shares(one.class_right)),
      confusions: once(() => unpack(one.confusions)),
    },
  ]),
);

/** @typedef {"onlyA" | "onlyB" | "both" | "neither"} Outcome */
/** @typedef {{ a: number, b: number | null, order: "worst" | "best", outcome: Outcome, text: string }} GalleryState */
/** @typedef {{ query: number, rightA: boolean, rightB: boolean, difference: number }} Compared */

// How the answers of two methods to a query compare, and how the queries of each outcome are sorted.
/** @type {{ key: Outcome, test: (c: Compared) => boolean, sort: (c: Compared) => number }[]} */
const OUTCOMES = [
  { key: "onlyA", test: (c) => c.rightA && !c.rightB, sort: (c) => -c.difference },
  { key: "onlyB", test: (c) => c.rightB && !c.rightA, sort: (c) => c.difference },
  { key: "both", test: (c) => c.rightA && c.rightB, sort: (c) => -Math.abs(c.difference) },
  { key: "neither", test: (c) => !c.rightA && !c.rightB, sort: (c) => -Math.abs(c.difference) },
];

/** What the gallery shows and how it is chosen. */
class Gallery {
  /** @param {NonNullable<PageData["gallery"]>} data */
  constructor(data) {
    this.data = data;
    this.queries = unpack(data.queries);
    this.methods = byPlace(answers.keys());
    /** @type {GalleryState} */
    this.state = { a: this.methods[0], b: null, order: "worst", outcome: "onlyA", text: "" };
  }

  labelOf(/** @type {number} */ i) {
    return items.labels[this.queries[i]];
  }

  /**
   * Whether the nearest image of a query has its class.
   * @param {number} method
   * @param {number} i
   */
  isRight(method, i) {
    return items.labels[got(answers, method).near()[i * this.data.neighbours]] === this.labelOf(i);
  }

  draw() {
    const { a, b, text } = this.state;
    const scores = got(answers, a).scores();
    const words = text.toLowerCase();
    const matches = (/** @type {number} */ i) => className(this.labelOf(i)).toLowerCase().includes(words);
    const known = range(this.queries.length).filter((i) => !Number.isNaN(scores[i]) && matches(i));
    const found = b === null ? this.sorted(known, scores) : this.compared(known, a, b);
    lazily(at("gallery-list"), found, (i) => this.row(i), 8, "queries");
    if (!found.length) at("gallery-list").append(h("p", { class: "soft" }, "No such query."));
  }

  /**
   * The queries of one method, by average precision.
   * @param {number[]} known
   * @param {Float64Array} scores
   */
  sorted(known, scores) {
    const { order } = this.state;
    at("gallery-outcomes").replaceChildren();
    at("gallery-caption").textContent =
      `${whole(known.length)} ${known.length === 1 ? "query" : "queries"}, ${order} average precision first. ` +
      "A solid frame and ✓: same class; a dashed frame and ✗: another class.";
    return known.sort((p, q) => (order === "worst" ? scores[p] - scores[q] : scores[q] - scores[p]));
  }

  /**
   * The queries with the chosen outcome for two methods, the largest difference first.
   * @param {number[]} known
   * @param {number} a
   * @param {number} b
   */
  compared(known, a, b) {
    const [scoresA, scoresB] = [got(answers, a).scores(), got(answers, b).scores()];
    const pairs = known.map((i) => ({
      query: i,
      rightA: this.isRight(a, i),
      rightB: this.isRight(b, i),
      difference: scoresA[i] - scoresB[i],
    }));
    const texts = {
      onlyA: `${nameOf(a)} right, ${nameOf(b)} wrong`,
      onlyB: `${nameOf(b)} right, ${nameOf(a)} wrong`,
      both: "both right",
      neither: "both wrong",
    };
    const buttons = OUTCOMES.map(({ key, test }) => {
      const count = whole(pairs.filter(test).length);
      const node = button([h("b", {}, count), texts[key]], () => this.choose(key), { id: `outcome-${key}` });
      press(node, key === this.state.outcome);
      return node;
    });
    const group = h("div", { class: "outcomes", role: "group", "aria-label": "Which queries" }, buttons);
    at("gallery-outcomes").replaceChildren(group);
    const { test, sort } = OUTCOMES.find((o) => o.key === this.state.outcome) ?? OUTCOMES[0];
    const found = pairs.filter(test).sort((p, q) => sort(p) - sort(q));
    at("gallery-caption").textContent =
      `${whole(found.length)} of ${whole(known.length)} queries, by whether the nearest image has the same class; ` +
      "largest difference in average precision first.";
    return found.map((c) => c.query);
  }

  choose(/** @type {Outcome} */ key) {
    this.state.outcome = key;
    this.draw();
    at(`outcome-${key}`).focus();
  }

  row(/** @type {number} */ i) {
    const item = this.queries[i];
    const { a, b } = this.state;
    const strips = [this.strip(a, i), b !== null && this.strip(b, i)];
    const text = h("div", {}, h("span", { class: "soft" }, "Query"), about(item));
    const asked = h("div", { class: "asked" }, thumb(item, `query of class ${className(this.labelOf(i))}`), text);
    return h("article", { class: "query" }, asked, h("div", {}, strips));
  }

  /**
   * The nearest images of a query.
   * @param {number} method
   * @param {number} i
   */
  strip(method, i) {
    const { near, scores } = got(answers, method);
    const k = this.data.neighbours;
    const list = range(k).map((n) => {
      const item = near()[i * k + n];
      const right = items.labels[item] === this.labelOf(i);
      const name = className(items.labels[item]);
      const mark = h("span", { class: "mark" }, right ? "✓ " : "✗ ");
      const props = {
        class: right ? "right" : "wrong",
        onpointermove: (/** @type {PointerEvent} */ e) => showTip(e.clientX, e.clientY, about(item)),
        onpointerleave: hideTip,
      };
      return h("li", props, thumb(item, `${right ? "right" : "wrong"}: ${name}`), h("span", {}, mark, name));
    });
    const score = h("span", { class: "soft" }, ` · average precision ${percent(scores()[i])} %`);
    return h("div", { class: "strip" }, h("p", {}, h("b", {}, nameOf(method)), score), h("ol", {}, list));
  }
}

function gallerySection() {
  if (!D.gallery) return;
  const gallery = new Gallery(D.gallery);
  const { state, methods } = gallery;
  at("gallery-lead").textContent = galleryLead(D.gallery, gallery.queries.length);
  const filter = search("Class", "part of a class name", (text) => {
    state.text = text;
    gallery.draw();
  });
  const showClass = (/** @type {string} */ name) => {
    filter.input.value = state.text = name;
    gallery.draw();
    at("gallery-controls").scrollIntoView({ behavior: calm.matches ? "auto" : "smooth", block: "start" });
  };
  const refresh = () => {
    order.hidden = state.b !== null;
    gallery.draw();
    classesSection(state.a, state.b, showClass);
  };
  /** @type {Choice<"worst" | "best">[]} */
  const orders = [
    { value: "worst", text: "Worst first" },
    { value: "best", text: "Best first" },
  ];
  const order = segments("Order", orders, state.order, (value) => {
    state.order = value;
    gallery.draw();
  });
  const chooseOther = () =>
    choose("Compare with", optionalMethods(methods.filter((m) => m !== state.a)), state.b, (m) => {
      state.b = m;
      refresh();
    });
  let other = chooseOther();
  const method = choose("Method", methodOptions(methods), state.a, (m) => {
    state.a = m;
    if (state.b === m) state.b = null;
    const next = chooseOther();
    other.replaceWith(next);
    other = next;
    refresh();
  });
  at("gallery-controls").replaceChildren(...present([method, methods.length > 1 && other, order, filter.field]));
  refresh();
}

/**
 * @param {NonNullable<PageData["gallery"]>} data
 * @param {number} shown number of queries
 */
function galleryLead(data, shown) {
  const folds = data.part === "concatenated" ? ", concatenated embeddings of all folds" : "";
  const some =
    `${whole(shown)} of ${whole(data.total)} queries are shown: in turn the hardest for all methods, ` +
    "those on which methods differ most, and random ones.";
  return (
    `Test images as queries and their ${data.neighbours} nearest images, seed ${data.seed}${folds}. ` +
    (shown === data.total ? "" : some)
  );
}
