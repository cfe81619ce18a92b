// @ts-check
// The collection, class by class: every image can be searched.

const TILES = 48;
const browsing = { label: "", shown: 0 };

/**
 * An image of the collection that is searched when it is clicked.
 * @param {number} id
 * @param {string} text
 */
function tile(id, text) {
  const title = "Search this image; with Shift, add it to the query";
  const click = (/** @type {PointerEvent} */ event) => searchItem(id, event.shiftKey);
  const image = h("img", { src: thumbnail(id), alt: text, loading: "lazy" });
  return h("li", {}, h("button", { type: "button", class: "tile", title, onclick: click, "data-id": id }, image, text));
}

async function browseMore() {
  const query = new URLSearchParams({ offset: String(browsing.shown), limit: String(TILES) });
  if (browsing.label) query.set("label", browsing.label);
  const { total, items: found } = await talk(`/items?${query}`);
  at("tiles").append(...found.map((/** @type {ItemFacts} */ item) => tile(item.id, labelText(item.label))));
  browsing.shown += found.length;
  const left = total - browsing.shown;
  const more = button(`Show ${Math.min(TILES, left)} more of ${whole(left)}`, () => void safely(browseMore));
  at("browse-more").replaceChildren(...present([left > 0 && more]));
}

function browseSection() {
  const restart = async () => {
    browsing.shown = 0;
    at("tiles").replaceChildren();
    await browseMore();
  };
  const change = (/** @type {string} */ value) => {
    browsing.label = value;
    void safely(restart);
  };
  at("browse-controls").replaceChildren(listOf("Class", classOptions(), "", change));
  whenSeen("collection", restart);
}
