// @ts-check
// Why a result is similar: the parts of the query that the similarity depends on, drawn over it.

/**
 * Ask where the image on the stage resembles a result, and draw the answer.
 * @param {Hit} hit
 */
async function explain(hit) {
  const example = state.examples[state.shown];
  if (!example) return;
  const figure = at("why");
  figure.hidden = false;
  figure.replaceChildren(h("figcaption", {}, "Covering parts of the query, one after another …"));
  const body = example.kind === "image" ? { method: "POST", body: formOf([example]) } : asJson({ item: example.id });
  /** @type {HeatAnswer} */
  const heat = await talk(`/heat?id=${hit.id}`, body);
  const image = await pictureOf(example);
  const canvas = drawHeat(image, example.kind === "image" ? example.box : null, heat);
  const most = Math.max(...heat.drops.flat());
  const caption = [
    h("b", {}, `Similarity to ${labelText(hit.label)}: ${heat.score.toFixed(3)}. `),
    most > 0
      ? `Warm parts matter: with the warmest covered, it falls by ${most.toFixed(3)}. `
      : "No single part matters: covering any of them does not lower it. ",
    `Computed by covering 49 parts of the image, in ${ms(heat.milliseconds)}.`,
  ];
  figure.replaceChildren(canvas, h("figcaption", {}, caption));
  figure.scrollIntoView({ block: "nearest" });
  say(figure.textContent ?? "");
}

/**
 * The image of an example, loaded.
 * @param {Example} example
 */
async function pictureOf(example) {
  const image = new Image();
  image.src = example.kind === "image" ? example.url : thumbnail(example.id);
  await image.decode();
  return image;
}

/**
 * The searched part of the image, darkened where nothing matters and warm where much does.
 * @param {HTMLImageElement} image
 * @param {Box | null} box
 * @param {HeatAnswer} heat
 */
function drawHeat(image, box, heat) {
  const [left, top, right, bottom] = box ?? [0, 0, 1, 1];
  const [x, y] = [left * image.naturalWidth, top * image.naturalHeight];
  const [width, height] = [(right - left) * image.naturalWidth, (bottom - top) * image.naturalHeight];
  const grow = 320 / Math.max(width, height);
  const canvas = h("canvas", { width: Math.round(width * grow), height: Math.round(height * grow), role: "img" });
  canvas.setAttribute("aria-label", "The query, with the parts that its similarity depends on");
  const pen = context2d(canvas);
  pen.drawImage(image, x, y, width, height, 0, 0, canvas.width, canvas.height);
  const most = Math.max(1e-6, ...heat.drops.flat());
  const [a, b, c, d] = heat.seen;
  const [cellWidth, cellHeight] = [((c - a) * canvas.width) / 7, ((d - b) * canvas.height) / 7];
  heat.drops.forEach((row, i) =>
    row.forEach((drop, j) => {
      const share = Math.max(0, drop) / most;
      pen.fillStyle = `rgb(${Math.round(20 + 235 * share)} ${Math.round(30 + 90 * share)} 40 / ${0.55 - 0.15 * share})`;
      const [px, py] = [a * canvas.width + j * cellWidth, b * canvas.height + i * cellHeight];
      pen.fillRect(px, py, cellWidth + 0.5, cellHeight + 0.5);
    }),
  );
  return canvas;
}
