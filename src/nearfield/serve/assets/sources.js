// @ts-check
// Where queries come from: files, drag and drop, the clipboard, the camera, items of the collection.

/**
 * Add images to the query and search.
 * @param {Iterable<Blob>} files
 */
function addImages(files) {
  const images = [...files].filter((file) => file.type.startsWith("image/"));
  if (!images.length)
    return report(new Error("That is not an image. Choose a JPEG, PNG, WebP, GIF, BMP or TIFF file."));
  if (state.examples.length + images.length > MOST_EXAMPLES) {
    return report(new Error(`A query has at most ${MOST_EXAMPLES} images. Remove some first.`));
  }
  for (const file of images) {
    state.examples.push({ kind: "image", file, url: URL.createObjectURL(file), box: null, vector: null });
  }
  state.shown = state.examples.length - 1;
  forgetFeedback();
  showExamples();
  void search();
}

/**
 * Search an item of the collection, alone or with what the query has already.
 * @param {number} id
 * @param {boolean} add
 */
function searchItem(id, add = false) {
  if (!add) clearExamples();
  if (!state.examples.some((each) => each.kind === "item" && each.id === id)) state.examples.push({ kind: "item", id });
  state.shown = state.examples.length - 1;
  forgetFeedback();
  showExamples();
  at("query").scrollIntoView({ behavior: calm.matches ? "instant" : "smooth" });
  void search();
}

function forgetFeedback() {
  state.right.clear();
  state.wrong.clear();
}

function clearExamples() {
  for (const each of state.examples) if (each.kind === "image") URL.revokeObjectURL(each.url);
  state.examples = [];
  state.shown = 0;
}

function startOver() {
  clearExamples();
  forgetFeedback();
  state.asked++;
  showExamples();
  showNothing();
  report(null);
  at("file").focus();
}

/** The images of the query, each of which can be put on the stage or removed. */
function showExamples() {
  const entries = state.examples.map((each, place) => {
    const name = each.kind === "image" ? `Image ${place + 1} of the query` : `Item ${each.id} of the collection`;
    const image = h("img", { src: each.kind === "image" ? each.url : thumbnail(each.id), alt: name });
    const show = () => {
      state.shown = place;
      showExamples();
    };
    const remove = () => {
      if (each.kind === "image") URL.revokeObjectURL(each.url);
      state.examples.splice(place, 1);
      state.shown = Math.max(0, Math.min(state.shown, state.examples.length - 1));
      if (!state.examples.length) return startOver();
      showExamples();
      return void search();
    };
    const chosen = button(image, show);
    press(chosen, place === state.shown);
    return h("li", {}, chosen, button("×", remove, { class: "plain drop-it", "aria-label": `Remove ${name}` }));
  });
  at("examples").replaceChildren(...entries);
  at("examples").hidden = entries.length === 1 && state.examples[0].kind === "image"; // it is on the stage
  showStage();
  showControls();
}

function listenForImages() {
  const input = /** @type {HTMLInputElement} */ (at("file"));
  input.addEventListener("change", () => {
    addImages(input.files ?? []);
    input.value = "";
  });
  addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    addImages(files);
  });
  const over = (/** @type {boolean} */ on) => at("drop").classList.toggle("over", on);
  addEventListener("dragover", (event) => {
    event.preventDefault();
    over(true);
  });
  addEventListener("dragleave", (event) => over(event.relatedTarget !== null));
  addEventListener("drop", (event) => {
    event.preventDefault();
    over(false);
    addImages(event.dataTransfer?.files ?? []);
  });
  at("camera").addEventListener("click", () => void safely(openCamera));
}

/** Take a picture: it stays in the page until it is searched. */
async function openCamera() {
  const dialog = /** @type {HTMLDialogElement} */ (at("lens"));
  const video = /** @type {HTMLVideoElement} */ (at("video"));
  const stream = await navigator.mediaDevices?.getUserMedia({ video: { facingMode: "environment" } }).catch(() => null);
  if (!stream) throw new Error("There is no camera, or the browser may not use it.");
  video.srcObject = stream;
  await video.play();
  dialog.showModal();
  const close = () => {
    for (const track of stream.getTracks()) track.stop();
    video.srcObject = null;
    if (dialog.open) dialog.close();
  };
  dialog.addEventListener("close", close, { once: true });
  at("leave").onclick = close;
  at("shoot").onclick = () => {
    const canvas = h("canvas", { width: video.videoWidth, height: video.videoHeight });
    context2d(canvas).drawImage(video, 0, 0);
    close();
    canvas.toBlob((blob) => blob && addImages([blob]), "image/jpeg", 0.92);
  };
}
