// @ts-check
// Two lists of duplicates, kept apart.

const PAIRS = 50; // groups shown at first

async function duplicatesSection() {
  at("duplicates-lists").replaceChildren(h("p", { class: "caption" }, "Looking for duplicates …"));
  /** @type {DuplicatesAnswer} */
  const { identical, near } = await talk("/duplicates");
  const same = identical.map((ids) => ({ ids, text: `${ids.length} identical files` }));
  const alike = near.map((pair) => ({
    ids: [pair.first, pair.second],
    text: `similarity ${pair.score.toFixed(3)}, hashes differ in ${plural(pair.bits, "bit")}`,
  }));
  at("duplicates-lists").replaceChildren(
    listOfGroups("identical", `Identical files: ${plural(same.length, "group")}`, same),
    listOfGroups("near", `Near-duplicates: ${plural(alike.length, "pair")}`, alike),
  );
}

/**
 * @param {string} id
 * @param {string} title
 * @param {{ ids: number[], text: string }[]} groups
 */
function listOfGroups(id, title, groups) {
  const body = h("div", { id });
  let shown = 0;
  const more = button("", () => show(), { class: "plain more" });
  const show = () => {
    for (const { ids, text } of groups.slice(shown, shown + PAIRS)) {
      const tiles = h("ol", { class: "tiles" }, ...ids.map((each) => tile(each, `item ${each}`)));
      body.append(h("div", { class: "group-of-copies" }, h("p", {}, text), tiles));
    }
    shown = Math.min(groups.length, shown + PAIRS);
    more.hidden = shown === groups.length;
    more.textContent = `Show more of ${whole(groups.length - shown)}`;
  };
  show();
  return h("div", {}, h("h3", {}, title), body, more);
}
