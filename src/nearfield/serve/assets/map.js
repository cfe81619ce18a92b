// @ts-check
// The atlas of the collection: the map of the report, on which a click searches.

async function atlasOfCollection() {
  at("atlas-caption").textContent = "The map is being computed …";
  /** @type {AtlasAnswer} */
  const found = await talk("/atlas");
  if (!found.ids.length) {
    at("atlas-caption").textContent = "The collection is too small for a map.";
    return;
  }
  const none = found.classes.length; // the place of items without a class
  items.labels = found.labels.map((label) => (label < 0 ? none : label));
  items.classes = found.labels.includes(-1) ? [...found.classes, "no class"] : found.classes;
  const xy = Float32Array.from(found.ids.flatMap((_, i) => [found.x[i], found.y[i]]));
  const label =
    `Map of ${found.ids.length} images. Arrow keys move, plus and minus zoom, 0 shows all, ` +
    "Enter searches the image nearest to the middle.";
  const atlas = new Atlas(Uint32Array.from(range(found.ids.length)), xy, label);
  const searchPoint = (/** @type {number} */ point) => point >= 0 && searchItem(found.ids[point]);
  const about = (/** @type {number} */ point) => [
    h("img", { src: thumbnail(found.ids[point]), alt: "" }),
    items.classes[items.labels[point]],
  ];
  atlasPointer(atlas, searchPoint, about);
  atlasKeys(atlas, { Enter: () => searchPoint(middlePoint(atlas)), Escape: () => highlight("") });
  const highlight = (/** @type {string} */ name) => {
    atlas.state.lit = new Set(name ? [items.classes.indexOf(name)] : []);
    atlas.recolour();
  };
  at("atlas-controls").replaceChildren(listOf("Highlight", classOptions(), "", highlight));
  atlasStage(atlas, at("atlas-stage"));
  themed.push(() => void atlas.recolour());
  atlas.recolour();
  const all = state.facts?.items ?? found.ids.length;
  const share = found.ids.length < all ? `${whole(found.ids.length)} of ${whole(all)}` : `all ${whole(all)}`;
  at("atlas-caption").textContent =
    `Shown are ${share} images, placed by t-SNE: distances between groups mean little. ` +
    "Drag to move; Ctrl and wheel, or the buttons, to zoom.";
  Object.assign(atlas.canvas, { atlas });
}

/**
 * The point nearest to the middle of what is shown.
 * @param {Atlas} atlas
 */
function middlePoint(atlas) {
  const { width, height } = atlas.size;
  const away = range(atlas.chosen.length).map((i) => {
    const [x, y] = atlas.screen(i);
    return (x - width / 2) ** 2 + (y - height / 2) ** 2;
  });
  return away.indexOf(Math.min(...away));
}
