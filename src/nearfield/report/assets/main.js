// Putting it together: sections with nothing to show go, the others are drawn one after another.

function provenanceSection() {
  const { facts, protocol, command, toml, missing } = D.provenance;
  const list = (pairs) => h("dl", { class: "pairs" }, Object.entries(pairs).map(([name, value]) => [h("dt", {}, name), h("dd", {}, h("code", {}, value))]));
  const toCopy = (text, what) => copyButton(`Copy the ${what}`, () => text, () => `The ${what} is copied`);
  at("provenance-body").replaceChildren(...[
    h("div", { class: "columns" }, h("div", {}, h("h3", {}, "Runs"), list(facts)), h("div", {}, h("h3", {}, "Protocol"), list(protocol))),
    command ? [h("h3", {}, "Run it again"), h("pre", { id: "command" }, command), toCopy(command, "command")] : null,
    h("details", {}, h("summary", {}, "Resolved configuration"), h("pre", {}, toml)),
    missing.length ? [h("h3", {}, "Not finished, and not counted"), h("ul", { id: "missing" }, missing.slice(0, 400).map((task) => h("li", {}, task)), missing.length > 400 ? h("li", {}, `and ${whole(missing.length - 400)} more`) : null)] : null,
  ].flat().filter(Boolean));
}

const SECTIONS = [
  ["leaderboard", true, leaderboardSection],
  ["curves", D.curves.length, curvesSection],
  ["search", D.searches.length, searchSection],
  ["bias", D.ledger.length, biasSection],
  ["atlas", D.atlas, atlasSection],
  ["gallery", D.gallery, gallerySection],
  ["weights", D.weights, weightsSection],
  ["provenance", true, provenanceSection],
];
themeSwitch();
const present = SECTIONS.filter(([id, wanted]) => wanted || void at(id).remove());
at("nav").replaceChildren(...present.map(([id]) => h("a", { href: `#${id}` }, at(id).dataset.title)));
for (const [, , draw] of present) draw();
document.documentElement.dataset.ready = "true";
