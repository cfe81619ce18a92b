// @ts-check
// The atlas: a zoomable map of test embeddings, with images on hover and at close range.

const IMAGES_IN_VIEW = 160; // with so few points in view, images are drawn instead of dots
const MANY_GROUPS = 30; // colours of more groups than this cannot be told apart

/** @typedef {"class" | "category" | "none"} ColourBy */

/** The map: what is drawn where, and in which colours. */
class Atlas {
  /**
   * @param {Numbers} chosen the items, one per point
   * @param {Float32Array} xy coordinates in 0..1, two per point
   * @param {string} label for screen readers
   */
  constructor(chosen, xy, label) {
    this.chosen = chosen;
    this.state = {
      /** @type {ColourBy} */
      by: defaultColours(),
      /** @type {Set<number>} */
      lit: new Set(), // highlighted classes
      k: 1, // zoom
      x: 0,
      y: 0,
      hover: -1,
      xy,
    };
    this.canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": label });
    this.pen = context2d(this.canvas);
    this.size = { width: 0, height: 0 };
    this.frame = 0;
    /** @type {string[]} */
    this.colours = []; // of each class
    this.paper = "";
    this.line = "";
  }

  labelOf(/** @type {number} */ i) {
    return items.labels[this.chosen[i]];
  }

  isLit(/** @type {number} */ i) {
    return !this.state.lit.size || this.state.lit.has(this.labelOf(i));
  }

  /**
   * Where a point is on the canvas.
   * @param {number} i
   * @returns {Point}
   */
  screen(i) {
    const { width, height } = this.size;
    const { xy, k, x, y } = this.state;
    return [
      width / 2 + ((xy[2 * i] - 0.5) * this.unit() + x) * k,
      height / 2 + ((xy[2 * i + 1] - 0.5) * this.unit() + y) * k,
    ];
  }

  unit() {
    return Math.min(this.size.width, this.size.height) - 32;
  }

  resize(/** @type {number} */ width) {
    if (!width || width === this.size.width) return;
    this.size = { width, height: Math.round(Math.min(660, Math.max(320, width * 0.62))) };
    const ratio = devicePixelRatio || 1;
    this.canvas.width = width * ratio;
    this.canvas.height = this.size.height * ratio;
    this.canvas.style.height = `${this.size.height}px`;
    this.paint();
  }

  /** Whether highlighted classes have colours of their own and all others have none. */
  hasOwnColours() {
    const { by, lit } = this.state;
    return by !== "class" && lit.size > 0 && lit.size <= 8;
  }

  /**
   * Choose colours: those of the charts for a few groups, hues spread around the circle for many.
   * Returns the colours of the categories.
   */
  recolour() {
    const { by, lit } = this.state;
    const base = range(8).map((i) => ink(`--m${i}`));
    const groups = by === "class" ? items.classes.length : items.categories.length;
    const group = range(groups).map((i) => (groups <= 8 ? base[i] : spreadHue(i)));
    const plain = ink("--soft");
    const highlighted = [...lit];
    this.colours = range(items.classes.length).map((label) => {
      if (by === "class") return group[label];
      if (this.hasOwnColours()) return lit.has(label) ? base[highlighted.indexOf(label)] : plain;
      return by === "category" ? group[items.class_category[label]] : plain;
    });
    this.paper = ink("--paper");
    this.line = plain;
    this.draw();
    return group;
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.paint());
  }

  paint() {
    const { width, height } = this.size;
    const { state, pen } = this;
    if (!width) return;
    const ratio = devicePixelRatio || 1;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = this.paper;
    pen.fillRect(0, 0, width, height);
    /** @type {[number, number, number][]} */
    const seen = [];
    for (let i = 0; i < this.chosen.length; i++) {
      const [x, y] = this.screen(i);
      if (x > -30 && y > -30 && x < width + 30 && y < height + 30) seen.push([i, x, y]);
    }
    const near = state.k > 1.5 && seen.length <= IMAGES_IN_VIEW;
    const small = this.chosen.length > 1500 ? 2.6 : 3.6;
    const radius = Math.min(7, small * Math.sqrt(state.k * Math.min(1, this.unit() / 560)));
    for (const lit of [false, true]) {
      pen.globalAlpha = lit ? 0.92 : 0.14;
      const size = lit && this.hasOwnColours() ? 1.5 * radius : radius;
      for (const [i, x, y] of seen) {
        if (this.isLit(i) === lit && !(near && lit && this.paintImage(i, x, y))) this.paintDot(i, x, y, size);
      }
    }
    pen.globalAlpha = 1;
    if (state.hover >= 0) this.paintRing(...this.screen(state.hover), radius + 4);
  }

  /**
   * @param {number} x
   * @param {number} y
   * @param {number} radius
   */
  paintRing(x, y, radius) {
    this.pen.strokeStyle = this.line;
    this.pen.lineWidth = 2;
    this.pen.beginPath();
    this.pen.arc(x, y, radius, 0, 7);
    this.pen.stroke();
  }

  /**
   * @param {number} i
   * @param {number} x
   * @param {number} y
   * @param {number} radius
   */
  paintDot(i, x, y, radius) {
    this.pen.fillStyle = this.colours[this.labelOf(i)];
    this.pen.beginPath();
    this.pen.arc(x, y, radius, 0, 7);
    this.pen.fill();
  }

  /**
   * Draw the thumbnail of a point; false if there is none yet.
   * @param {number} i
   * @param {number} x
   * @param {number} y
   */
  paintImage(i, x, y) {
    const tile = tileOf(this.chosen[i]);
    if (!tile || !sheets) return false;
    const image = sheetImage[tile.sheet]();
    if (!image.complete) {
      image.addEventListener("load", () => this.draw(), { once: true });
      return false;
    }
    const { side } = sheets;
    const shown = Math.min(side, 44);
    const [left, top] = [x - shown / 2, y - shown / 2];
    this.pen.drawImage(image, tile.column * side, tile.row * side, side, side, left, top, shown, shown);
    this.pen.strokeStyle = this.colours[this.labelOf(i)];
    this.pen.lineWidth = 2;
    this.pen.strokeRect(left, top, shown, shown);
    return true;
  }

  /**
   * @param {number} factor
   * @param {number} x a place on the canvas that stays where it is
   * @param {number} y
   */
  zoom(factor, x = this.size.width / 2, y = this.size.height / 2) {
    const { state, size } = this;
    const k = Math.max(1, Math.min(60, state.k * factor));
    state.x += (x - size.width / 2) * (1 / k - 1 / state.k);
    state.y += (y - size.height / 2) * (1 / k - 1 / state.k);
    state.k = k;
    if (k === 1) state.x = state.y = 0;
    this.draw();
  }

  /**
   * @param {number} dx
   * @param {number} dy
   */
  pan(dx, dy) {
    this.state.x += dx / this.state.k;
    this.state.y += dy / this.state.k;
    this.draw();
  }

  showAll() {
    this.zoom(0);
  }

  /**
   * The point nearest to a place on the canvas, -1 if none is near; highlighted points are found from farther away.
   * @param {Point} place
   */
  nearest([x, y]) {
    let best = -1;
    let least = 14 ** 2;
    for (let i = 0; i < this.chosen.length; i++) {
      const [px, py] = this.screen(i);
      const d = (px - x) ** 2 + (py - y) ** 2;
      if (d >= least || !(this.isLit(i) || d < 16)) continue;
      least = d;
      best = i;
    }
    return best;
  }

  /**
   * Move every point to its place in another map.
   * @param {Float32Array} to
   */
  travel(to) {
    const from = Float32Array.from(this.state.xy);
    const start = performance.now();
    const time = calm.matches ? 0 : 450;
    const step = (/** @type {number} */ now) => {
      if (this.target !== to) return;
      const t = time ? Math.min(1, Math.max(0, (now - start) / time)) : 1;
      const ease = t * t * (3 - 2 * t);
      this.state.xy = t < 1 ? from.map((v, i) => v + (to[i] - v) * ease) : to;
      this.paint();
      if (t < 1) requestAnimationFrame(step);
    };
    this.target = to;
    requestAnimationFrame(step);
  }
}

/**
 * By class for a few classes, by category for many; plain if there are too many categories too.
 * @returns {ColourBy}
 */
function defaultColours() {
  if (items.classes.length <= MANY_GROUPS) return "class";
  return items.categories.length > 1 && items.categories.length <= MANY_GROUPS ? "category" : "none";
}

function spreadHue(/** @type {number} */ i) {
  const system = matchMedia("(prefers-color-scheme: dark)").matches;
  const { theme } = document.documentElement.dataset;
  const dark = theme === undefined ? system : theme === "dark";
  return `hsl(${(i * 137.508) % 360} ${55 + (i % 3) * 12}% ${(dark ? 58 : 38) + (i % 2) * 10}%)`;
}
