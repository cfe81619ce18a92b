// @ts-check
// The answer: a verdict, the time it took, and the neighbours, which can be marked as right or wrong.

function showNothing() {
  for (const id of ["verdict", "why", "keys"]) at(id).hidden = true;
  at("latency").textContent = "";
  at("hits").replaceChildren();
  showControls();
}

/**
 * @param {Answer} answer
 * @param {number} elapsed milliseconds in the browser
 */
function showAnswer(answer, elapsed) {
  at("why").hidden = true;
  at("verdict").hidden = false;
  at("verdict").replaceChildren(...verdict(answer).map((line) => h("p", {}, line)));
  const { decode, embed, search: searching, total } = answer.milliseconds;
  const parts = `decoding ${ms(decode)}, network ${ms(embed)}, search ${ms(searching)}`;
  at("latency").textContent = `Answered in ${ms(total)} (${parts}); ${ms(elapsed)} in the browser.`;
  at("hits").replaceChildren(...answer.neighbours.map(hitCard));
  at("keys").hidden = !answer.neighbours.length;
  showControls();
  say(`${plural(answer.neighbours.length, "result")}. ${at("verdict").textContent}`);
}

const ms = (/** @type {number} */ value) => `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;

/**
 * What is known about the class of the query, in one or two lines.
 * @param {Answer} answer
 * @returns {Child[]}
 */
function verdict({ suggestion, is_new: isNew, p_value: p, neighbours }) {
  if (!neighbours.length) return ["Nothing was found."];
  const name = suggestion && h("b", {}, suggestion.label);
  const chance = suggestion?.probability;
  const sure = chance === null || chance === undefined ? "" : `, probability ${percent(chance, 0)} %`;
  if (isNew === null) {
    const calibrated = state.facts?.threshold !== null;
    const why = calibrated
      ? "Whether a query is new is calibrated for one image from outside the collection, without feedback."
      : state.facts?.note || "This index is not calibrated, so there is no verdict on whether a query is new.";
    return [suggestion ? ["Nearest class: ", name] : "The nearest images have no class.", why];
  }
  const rate = p === null ? "" : `Of queries of known classes, ${percent(p, 1)} % are at most this similar.`;
  if (isNew) {
    const near = suggestion && [" The nearest is ", name, sure, "."];
    return [
      [h("span", { class: "verdict-new" }, "New: "), "no class of the collection is similar enough.", near],
      rate,
    ];
  }
  return [[h("span", { class: "verdict-known" }, "Known: "), name, sure, "."], rate];
}

/** @param {Hit} hit */
function hitCard(hit) {
  const name = `${labelText(hit.label)}, similarity ${hit.score.toFixed(3)}, ${hit.path}`;
  const image = h("img", { src: thumbnail(hit.id), alt: name, loading: "lazy" });
  const open = {
    class: "photo",
    href: `/items/${hit.id}/file`,
    target: "_blank",
    rel: "noopener",
    title: "Original file",
  };
  const width = `${Math.max(0, Math.min(100, 100 * hit.score))}%`;
  const twins = h("div", { class: "twins", hidden: true });
  const card = h(
    "li",
    { class: "hit", "data-id": hit.id },
    h("a", open, image),
    h("div", { class: "similar" }, h("span", { class: "meter" }, h("i", { style: { width } })), hit.score.toFixed(3)),
    h("b", {}, labelText(hit.label)),
    h("span", { class: "where" }, hit.path),
    twinButton(plural(hit.copies.length, "identical copy").replace("copys", "copies"), hit.copies, twins),
    twinButton(plural(hit.near.length, "near-duplicate"), hit.near, twins),
    twins,
  );
  const acts = actsOn(hit, card);
  const [yes, no] = [button("✓", acts.y, { "aria-label": "Right" }), button("✗", acts.n, { "aria-label": "Wrong" })];
  const why = button("Why", acts.w, { title: "Where the query resembles it" });
  card.append(h("div", { class: "acts" }, yes, no, button("Search", acts.s), why));
  card.addEventListener("keydown", (event) => cardKeys(event, acts, card));
  showMarks(card, hit.id);
  return card;
}

/**
 * What can be done with a result, by its key.
 * @param {Hit} hit
 * @param {HTMLElement} card
 */
function actsOn(hit, card) {
  /** @type {(to: Set<number>, from: Set<number>) => void} */
  const mark = (to, from) => {
    from.delete(hit.id);
    if (!to.delete(hit.id)) to.add(hit.id);
    showMarks(card, hit.id);
    showControls();
    say(state.right.has(hit.id) ? "Marked as right" : state.wrong.has(hit.id) ? "Marked as wrong" : "Not marked");
  };
  return {
    y: () => mark(state.right, state.wrong),
    n: () => mark(state.wrong, state.right),
    s: () => searchItem(hit.id),
    w: () => void safely(() => explain(hit)),
  };
}

/**
 * @param {HTMLElement} card
 * @param {number} id
 */
function showMarks(card, id) {
  card.classList.toggle("right", state.right.has(id));
  card.classList.toggle("wrong", state.wrong.has(id));
  const [yes, no] = card.querySelectorAll(".acts button");
  press(/** @type {HTMLElement} */ (yes), state.right.has(id));
  press(/** @type {HTMLElement} */ (no), state.wrong.has(id));
}

/**
 * @param {KeyboardEvent} event
 * @param {Record<string, () => void>} acts
 * @param {HTMLElement} card
 */
function cardKeys(event, acts, card) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const steps = /** @type {Record<string, Element | null>} */ ({
    ArrowRight: card.nextElementSibling,
    ArrowLeft: card.previousElementSibling,
  });
  const key = event.key.toLowerCase();
  if (key in acts) acts[key]();
  else if (event.key in steps) /** @type {HTMLElement | null} */ (steps[event.key]?.querySelector("a"))?.focus();
  else return;
  event.preventDefault();
}

/**
 * A tag that shows the duplicates of a result; none if there are none.
 * @param {string} text
 * @param {number[]} ids
 * @param {HTMLElement} place
 */
function twinButton(text, ids, place) {
  if (!ids.length) return null;
  const show = () => {
    const links = ids.map((id) =>
      h(
        "button",
        { type: "button", class: "tile", onclick: () => searchItem(id) },
        h("img", { src: thumbnail(id), alt: `Item ${id}` }),
      ),
    );
    place.replaceChildren(...links);
    place.hidden = false;
  };
  return h("button", { type: "button", class: "tag", onclick: show }, text);
}
