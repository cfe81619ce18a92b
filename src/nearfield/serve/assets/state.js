// @ts-check
// What the page knows, and what the map of the report expects to find.

const MOST_EXAMPLES = 16;

/** @type {SearchState} */
const state = { examples: [], shown: 0, right: new Set(), wrong: new Set(), label: "", k: 12, asked: 0, facts: null };

// The items of the map, filled when it is asked for; their images are not tiles of sheets here.
const items = {
  /** @type {number[]} */
  labels: [],
  /** @type {string[]} */
  classes: [],
  /** @type {number[]} */
  class_category: [],
  /** @type {string[]} */
  categories: [],
};
/** @type {{ side: number } | null} */
const sheets = null;
/** @type {(() => HTMLImageElement)[]} */
const sheetImage = [];
/** @type {(item: number) => { sheet: number, column: number, row: number } | null} */
const tileOf = () => null;

const thumbnail = (/** @type {number} */ id) => `/items/${id}/thumbnail`;
const labelText = (/** @type {string | null} */ label) => label ?? "no class";

/**
 * One of several, from a list.
 * @param {string} label
 * @param {[value: string, text: string][]} options
 * @param {string} value
 * @param {(value: string) => void} change
 */
function listOf(label, options, value, change) {
  const entries = options.map(([key, text]) => h("option", { value: key, selected: key === value }, text));
  const list = h("select", { onchange: () => change(list.value) }, entries);
  return h("label", { class: "field" }, label, list);
}

/** @returns {[string, string][]} */
function classOptions() {
  const found = Object.entries(state.facts?.classes ?? {});
  return [["", "All classes"], ...found.map(([name, n]) => /** @type {[string, string]} */ ([name, `${name} (${n})`]))];
}
