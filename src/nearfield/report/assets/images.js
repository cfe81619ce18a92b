// @ts-check
// Images: tiles of a few large sheets, each decoded when one of its tiles is first shown.

const EMPTY = /** @type {Packed} */ ({ type: "uint8", bytes: "" });
const NO_ITEMS = { labels: EMPTY, classes: [], class_category: [], categories: [], thumbs: EMPTY, files: [] };
/** @type {NonNullable<PageData["items"]>} */
const packedItems = D.items ?? NO_ITEMS;
const items = { ...packedItems, labels: unpack(packedItems.labels), thumbs: unpack(packedItems.thumbs) };
const className = (/** @type {number} */ label) => items.classes[label];
const categoryName = (/** @type {number} */ label) => items.categories[items.class_category[label]];

const sheets = D.sheets ?? null;
const sheetUrl = range(sheets?.sheets ?? 0).map((i) =>
  once(() => {
    const bytes = unpack({ type: "uint8", bytes: at(`sheet-${i}`).textContent ?? "" });
    return URL.createObjectURL(new Blob([/** @type {BlobPart} */ (bytes)], { type: "image/webp" }));
  }),
);
const sheetImage = sheetUrl.map((url) =>
  once(() => {
    const image = new Image();
    image.src = url();
    return image;
  }),
);

/**
 * Where the thumbnail of an item is; null if it has none.
 * @param {number} item
 */
function tileOf(item) {
  const thumb = items.thumbs[item];
  if (thumb < 0 || !sheets) return null;
  const within = thumb % sheets.per_sheet;
  const sheet = Math.floor(thumb / sheets.per_sheet);
  return { sheet, column: within % sheets.columns, row: Math.floor(within / sheets.columns) };
}

/**
 * The thumbnail of an item, or its class name if it has none.
 * @param {number} item
 * @param {string} [label] for screen readers
 */
function thumb(item, label) {
  const tile = tileOf(item);
  const name = label ?? className(items.labels[item]);
  if (!tile || !sheets) {
    return h("span", { class: "thumb blank", role: "img", "aria-label": name }, className(items.labels[item]));
  }
  const style = {
    "background-image": `url("${sheetUrl[tile.sheet]()}")`,
    "background-size": `calc(${sheets.columns} * var(--side, 64px)) auto`,
    "background-position": `calc(${-tile.column} * var(--side, 64px)) calc(${-tile.row} * var(--side, 64px))`,
  };
  return h("span", { class: "thumb", role: "img", "aria-label": name, style });
}

/**
 * Class, category and file name of an item.
 * @param {number} item
 * @returns {Child[]}
 */
function about(item) {
  const label = items.labels[item];
  const file = items.files[item];
  return [
    h("b", {}, className(label)),
    items.categories.length > 1 && h("div", { class: "soft" }, categoryName(label)),
    file !== undefined && h("div", { class: "soft file", title: file }, file.split("/").pop()),
  ];
}
