// @ts-check
// The section of the atlas: its controls and its legend.

function atlasSection() {
  if (!D.atlas) return;
  const chosen = unpack(D.atlas.items);
  const maps = new Map(
    D.atlas.maps.map((m) => [m.method, once(() => Float32Array.from(unpack(m.xy), (v) => v / 65535))]),
  );
  const methods = byPlace(maps.keys());
  const label =
    `Map of ${chosen.length} test images. Arrow keys move, plus and minus zoom, ` +
    "0 shows all, Escape clears the highlight.";
  const atlas = new Atlas(chosen, got(maps, methods[0])(), label);
  const { state } = atlas;
  const recolour = () => atlasCaption(atlas, atlas.recolour());
  const highlight = (/** @type {number[]} */ labels) => {
    state.lit = new Set(labels);
    recolour();
    say(labels.length ? `Highlighted ${labels.slice(0, 4).map(className).join(", ")}` : "No class highlighted");
  };
  const click = (/** @type {number} */ point) => {
    const label = point < 0 ? null : atlas.labelOf(point);
    highlight(label === null || (state.lit.size === 1 && state.lit.has(label)) ? [] : [label]);
  };
  const changeColours = (/** @type {ColourBy} */ by) => {
    state.by = by;
    recolour();
  };
  const filter = search("Highlight classes", "part of a class name", (text) => {
    const wanted = text.toLowerCase();
    const matching = range(items.classes.length).filter((c) => className(c).toLowerCase().includes(wanted));
    highlight(text ? matching : []);
  });
  const kinds = colourChoices();
  at("atlas-lead").textContent = atlasLead(chosen.length);
  at("atlas-controls").replaceChildren(
    ...present([
      choose("Method", methodOptions(methods), methods[0], (method) => atlas.travel(got(maps, method)())),
      kinds.length > 1 && segments("Colour by", kinds, state.by, changeColours),
      filter.field,
    ]),
  );
  atlasPointer(atlas, click, (item) => [
    sheets && fill(thumb(item), { style: { "--side": "112px" } }, []),
    about(item),
  ]);
  atlasKeys(atlas, { Escape: () => highlight([]) });
  atlasStage(atlas, at("atlas-stage"));
  themed.push(recolour);
  recolour();
  Object.assign(atlas.canvas, { atlas });
}

/** @returns {Choice<ColourBy>[]} */
function colourChoices() {
  /** @type {Choice<ColourBy>[]} */
  const found = [{ value: "class", text: "Class" }];
  if (items.categories.length > 1) found.push({ value: "category", text: "Category" });
  if (defaultColours() === "none") found.push({ value: "none", text: "None" });
  return found;
}

function atlasLead(/** @type {number} */ count) {
  const all = items.labels.length;
  const share =
    count < all ? `${whole(count)} of ${whole(all)}, the same share of every class` : `all ${whole(count)} of them`;
  return (
    `Every point is a test image (${share}), placed by t-SNE: neighbours in the map are neighbours in the embedding, ` +
    "but distances between groups and the sizes of groups mean little. All maps are rotated to match the first."
  );
}

/**
 * The legend and what is highlighted.
 * @param {Atlas} atlas
 * @param {string[]} categoryColours
 */
function atlasCaption(atlas, categoryColours) {
  const { state, colours, chosen } = atlas;
  const lit = [...state.lit];
  const key = (/** @type {string} */ colour, /** @type {string} */ name) =>
    h("span", {}, h("i", { style: { background: colour } }), name);
  const keys = atlas.hasOwnColours()
    ? lit.map((label) => key(colours[label], className(label)))
    : state.by === "category"
      ? items.categories.map((name, i) => key(categoryColours[i], name))
      : [];
  const names = lit.slice(0, 4).map(className).join(", ") + (lit.length > 4 ? ` and ${lit.length - 4} more` : "");
  const count = Array.from(chosen).filter((item) => state.lit.has(items.labels[item])).length;
  at("atlas-caption").replaceChildren(
    h("div", { class: "keys" }, keys),
    lit.length ? `Highlighted: ${names}; ${plural(count, "point")}. ` : "",
    "Click a point to highlight its class. Drag to move; Ctrl and wheel, or the buttons, to zoom.",
  );
}
