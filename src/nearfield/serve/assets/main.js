// @ts-check
// The page: what is served, then every section.

async function start() {
  themeSwitch();
  listenForImages();
  /** @type {IndexFacts} */
  const facts = await talk("/index");
  state.facts = facts;
  document.title = `${facts.name} · Nearfield search`;
  at("title").textContent = facts.name;
  const cut = facts.threshold === null ? "not calibrated" : `best similarity below ${facts.threshold.toFixed(3)}`;
  const entries = [
    ["Images", whole(facts.items)],
    ["Classes", whole(Object.keys(facts.classes).length)],
    ["Dims", whole(facts.dims)],
    ["Model", facts.model.slice(0, 12)],
    ["Search", facts.engine ?? "–"],
    ["New if", cut],
  ];
  at("facts").replaceChildren(...entries.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
  at("note").hidden = !facts.note;
  at("note").textContent = facts.note ?? "";
  showControls();
  browseSection();
  whenSeen("atlas", atlasOfCollection);
  whenSeen("duplicates", duplicatesSection);
  document.documentElement.dataset.ready = "true";
}

void safely(start);
