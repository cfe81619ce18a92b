// @ts-check
// Talk to the API; ask for the token when it wants one.

const PATIENCE = 20; // times that something is asked for again while the server is busy

/**
 * The JSON of an answer; an Error with the server's message if it refused. What changes nothing is asked for again
 * while the server is busy: a map of a large collection takes its time.
 * @param {string} path
 * @param {RequestInit} options
 * @param {number} attempts
 * @returns {Promise<any>}
 */
async function talk(path, options = {}, attempts = PATIENCE) {
  const response = await fetch(path, options).catch(() => {
    throw new Error("The server does not answer. Is it still running?");
  });
  if (response.status === 401 && path !== "/session") {
    await login();
    return talk(path, options);
  }
  if (response.status === 503 && !options.method && attempts > 0) {
    await new Promise((resolve) => setTimeout(resolve, 1000 * Number(response.headers.get("Retry-After") ?? 1)));
    return talk(path, options, attempts - 1);
  }
  const text = await response.text();
  const body = text ? JSON.parse(text) : null;
  if (!response.ok) throw new Error(body?.error?.message ?? `The server answered ${response.status}.`);
  return body;
}

const asJson = (/** @type {unknown} */ value) => ({
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(value),
});

/** @type {Promise<void> | null} */
let loggingIn = null;
/** Ask for the token until it is right; several requests wait for the same dialog. */
function login() {
  loggingIn ??= new Promise((resolve) => {
    const dialog = /** @type {HTMLDialogElement} */ (at("login"));
    const input = /** @type {HTMLInputElement} */ (at("token"));
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.querySelector("form")?.addEventListener("submit", async (event) => {
      event.preventDefault();
      try {
        await talk("/session", asJson({ token: input.value }));
        dialog.close();
        resolve();
      } catch (error) {
        at("login-problem").textContent = messageOf(error);
      }
    });
    dialog.showModal();
  });
  return loggingIn;
}

const messageOf = (/** @type {unknown} */ error) => (error instanceof Error ? error.message : String(error));

/**
 * Show what went wrong, or nothing any more.
 * @param {unknown} error
 */
function report(error) {
  const node = at("problem");
  node.hidden = !error;
  node.textContent = error ? messageOf(error) : "";
}

/**
 * Run something; what goes wrong is shown.
 * @param {() => Promise<void>} act
 */
async function safely(act) {
  try {
    await act();
  } catch (error) {
    report(error);
  }
}

/**
 * Run something when a part of the page comes into view, once.
 * @param {string} id
 * @param {() => Promise<void>} act
 */
function whenSeen(id, act) {
  const watcher = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    watcher.disconnect();
    void safely(act);
  });
  watcher.observe(at(id));
}
