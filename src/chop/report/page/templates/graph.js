"use strict";
// The graph of a model: folded by module, searched, moved and enlarged; a click shows what is known.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const [WIDTH, HEIGHT, ACROSS, DOWN, LETTER] = [150, 40, 24, 34, 6.7];
  const MOST_OPEN = 60;
  const PAPER = [680, 2700]; // pixels of three pages of A4
  const LEGIBLE = 1.3; // units of the drawing in a pixel, beyond which names cannot be read

  function element(name, attributes, parent) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (parent) parent.append(made);
    return made;
  }

  // Modules with more than one node, by path; each has its nodes.
  function modules(nodes) {
    const found = new Map();
    nodes.forEach((node, i) => {
      for (let depth = 1; depth < node.path.length; depth += 1) {
        const key = node.path.slice(0, depth).join(".");
        if (!found.has(key)) found.set(key, []);
        found.get(key).push(i);
      }
    });
    for (const [key, members] of found) if (members.length < 2) found.delete(key);
    return found;
  }

  class Graph {
    constructor(place, data) {
      this.nodes = data.nodes;
      this.letters = data.letters || {};
      this.marks = Object.entries(data.marks || {});
      this.colored = "";
      this.modules = modules(this.nodes);
      this.open = new Set();
      this.build(place, data.leftOut);
      this.unfold();
      this.draw();
      this.fit();
    }

    build(place, leftOut) {
      place.replaceChildren();
      const tools = document.createElement("div");
      tools.className = "graph-tools";
      this.search = document.createElement("input");
      this.search.type = "search";
      this.search.placeholder = "find a layer";
      this.search.setAttribute("aria-label", "find a layer");
      this.search.addEventListener("input", () => this.find());
      tools.append(this.search);
      const buttons = {
        "−": ["smaller", () => this.zoom(1.25)], "+": ["larger", () => this.zoom(0.8)],
        Fit: ["fit", () => this.fit(Infinity)], "Unfold all": ["unfold all", () => this.all(true)],
        "Fold all": ["fold all", () => this.all(false)],
      };
      for (const [text, [label, act]] of Object.entries(buttons)) {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = text;
        button.setAttribute("aria-label", label);
        button.addEventListener("click", act);
        tools.append(button);
      }
      this.chooseColors(tools);
      const body = document.createElement("div");
      body.className = "graph-body";
      this.view = document.createElement("div");
      this.view.className = "graph-view";
      this.words = document.createElement("div");
      this.words.className = "graph-words";
      this.words.setAttribute("aria-live", "polite");
      this.words.textContent = "Click a box for its shapes, formats and numbers. A click on a module unfolds or folds it.";
      body.append(this.view, this.words);
      place.append(tools, body, this.legend(leftOut));
      this.moves();
    }

    legend(leftOut) {
      const made = document.createElement("p");
      made.className = "about graph-legend";
      this.marks.forEach(([mark, means], m) => {
        const swatch = document.createElement("span");
        swatch.className = `swatch mark${m}`;
        made.append(swatch, `${mark}: ${means}. `);
      });
      const some = (key) => this.nodes.some((node) => node[key]);
      const letters = Object.entries(this.letters).map(([letter, means]) => `${letter} = ${means}`);
      made.append([some("quantized") && "Thick green border: quantized.", some("stays_float") && "Dashed: could be quantized, is float.",
        this.modules.size && "Filled: a module.", letters.join(", "), leftOut && `${leftOut} more nodes are not drawn.`].filter(Boolean).join(" "));
      return made;
    }

    // A number of the nodes can be their color, from the least (pale) to the greatest.
    chooseColors(tools) {
      const names = [...new Set(this.nodes.flatMap((node) => Object.keys(node.numbers || {})))];
      if (!names.length) return;
      const select = document.createElement("select");
      select.setAttribute("aria-label", "color by");
      select.append(new Option("color by format", ""), ...names.map((name) => new Option(`color by ${name}`, name)));
      select.addEventListener("change", () => { this.colored = select.value; this.draw(); });
      tools.append(select);
    }

    shade(members) {
      const of = (node) => (node.numbers || {})[this.colored];
      const known = (nodes) => nodes.map(of).filter((value) => value !== undefined);
      const [all, own] = [known(this.nodes), known(members)];
      if (!this.colored || !own.length) return "";
      const [low, high] = [Math.min(...all), Math.max(...all)];
      return `shaded h${high > low ? Math.round((8 * (Math.max(...own) - low)) / (high - low)) : 0}`;
    }

    // Opens modules from the outermost on, while that leaves few boxes.
    unfold() {
      const depth = (key) => key.split(".").length;
      const byDepth = [...this.modules.keys()].sort((a, b) => depth(a) - depth(b));
      for (const key of byDepth) {
        this.open.add(key);
        if (this.boxes().length > MOST_OPEN) { this.open.delete(key); break; }
      }
    }

    // What is drawn: nodes, and folded modules; each with the nodes in it.
    boxes() {
      const found = new Map();
      this.nodes.forEach((node, i) => {
        let key = `#${i}`;
        for (let depth = 1; depth < node.path.length; depth += 1) {
          const path = node.path.slice(0, depth).join(".");
          if (this.modules.has(path) && !this.open.has(path)) { key = path; break; }
        }
        if (!found.has(key)) found.set(key, { key, members: [] });
        found.get(key).members.push(i);
      });
      return [...found.values()];
    }

    layers(boxes) {
      const home = new Map();
      boxes.forEach((box, b) => box.members.forEach((i) => home.set(i, b)));
      const reads = boxes.map((box, b) => {
        const from = new Set(box.members.flatMap((i) => (this.nodes[i].reads || []).map((j) => home.get(j))));
        from.delete(b);
        return [...from].filter((x) => x !== undefined);
      });
      const layer = [];
      const visit = (b, seen) => {
        if (layer[b] !== undefined) return layer[b];
        if (seen.has(b)) return 0; // a module that is called twice
        seen.add(b);
        layer[b] = reads[b].length ? 1 + Math.max(...reads[b].map((x) => visit(x, seen))) : 0;
        return layer[b];
      };
      boxes.forEach((_, b) => visit(b, new Set()));
      return { layer, reads };
    }

    draw() {
      const boxes = this.boxes();
      const { layer, reads } = this.layers(boxes);
      const rows = [];
      boxes.forEach((box, b) => { (rows[layer[b]] = rows[layer[b]] || []).push(b); });
      const x = [];
      const width = boxes.map((box) => Math.min(260, Math.max(WIDTH, 20 + LETTER * Math.max(this.title(box).length, this.below(box).length))));
      this.size = { width: 0, height: rows.length * (HEIGHT + DOWN) };
      rows.forEach((row) => {
        const wanted = (b) => (reads[b].length ? reads[b].reduce((sum, r) => sum + (x[r] || 0), 0) / reads[b].length : 0);
        row.sort((a, b) => wanted(a) - wanted(b));
        const total = row.reduce((sum, b) => sum + width[b] + ACROSS, -ACROSS);
        let at = -total / 2;
        for (const b of row) { x[b] = at + width[b] / 2; at += width[b] + ACROSS; }
        this.size.width = Math.max(this.size.width, total);
      });
      const y = layer.map((each) => each * (HEIGHT + DOWN));
      const svg = element("svg", { role: "group", "aria-label": "graph of the model" });
      boxes.forEach((box, b) => reads[b].forEach((r) => {
        const [top, bottom] = [y[r] + HEIGHT, y[b]];
        const middle = (top + bottom) / 2;
        element("path", { class: "edge", d: `M${x[r]},${top}C${x[r]},${middle} ${x[b]},${middle} ${x[b]},${bottom}` }, svg);
      }));
      this.drawn = new Map();
      boxes.forEach((box, b) => this.box(svg, box, x[b] - width[b] / 2, y[b], width[b]));
      this.view.replaceChildren(svg);
      this.svg = svg;
      this.place();
      this.find();
    }

    title(box) {
      if (!box.key.startsWith("#")) return `${box.key} (${box.members.length})`;
      return this.nodes[box.members[0]].path.join(".");
    }

    marksOf(box) {
      return this.marks.map(([mark]) => mark).filter((mark) => box.members.some((i) => (this.nodes[i].marks || []).includes(mark)));
    }

    // The second line: marks ahead of what is known of the node.
    below(box) {
      const node = this.nodes[box.members[0]];
      const isFolder = !box.key.startsWith("#");
      const lines = isFolder ? ["module, folded"] : node.brief ? [node.brief] : [node.kind, ...(node.lines || []).slice(1, 2)];
      const marks = this.marksOf(box);
      return `${marks.length ? `${marks.join(", ")}: ` : ""}${lines.join("  ")}`;
    }

    box(svg, box, x, y, width) {
      const members = box.members.map((i) => this.nodes[i]);
      const isFolder = !box.key.startsWith("#");
      const marks = this.marksOf(box).map((mark) => `mark${this.marks.findIndex(([each]) => each === mark)}`);
      const classes = ["node", isFolder && "folder", members.some((n) => n.quantized) && "quantized",
        members.some((n) => n.stays_float) && "stays", this.shade(members), ...marks].filter(Boolean).join(" ");
      const title = this.title(box);
      const group = element("g", { class: classes, tabindex: 0, role: "button", "aria-label": [title, ...this.marksOf(box)].join(", "), transform: `translate(${x},${y})` }, svg);
      element("rect", { width, height: HEIGHT, rx: 5 }, group);
      const most = Math.floor((width - 12) / LETTER);
      const name = element("text", { x: width / 2, y: 17, "text-anchor": "middle" }, group);
      name.textContent = title.length > most ? `…${title.slice(1 - most)}` : title;
      const below = element("text", { x: width / 2, y: 32, "text-anchor": "middle" }, group);
      below.textContent = this.below(box).slice(0, most);
      const act = () => this.choose(box, group);
      group.addEventListener("click", () => { if (!this.moved) act(); });
      group.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(); }
      });
      this.drawn.set(box.key, { box, group, x: x + width / 2, y: y + HEIGHT / 2 });
    }

    choose(box, group) {
      this.svg.querySelectorAll(".chosen").forEach((each) => each.classList.remove("chosen"));
      group.classList.add("chosen");
      if (!box.key.startsWith("#")) {
        this.open.add(box.key);
        this.draw();
        return;
      }
      const node = this.nodes[box.members[0]];
      const numbers = Object.entries(node.numbers || {}).map(([name, value]) => `${name}: ${Number(value.toPrecision(4))}`);
      const marks = this.marks.filter(([mark]) => (node.marks || []).includes(mark)).map(([mark, means]) => `${mark}: ${means}`);
      const known = [node.path.join("."), node.kind, ...marks, ...(node.brief ? [node.brief] : []), ...(node.lines || []), ...numbers];
      this.words.textContent = known.join("\n");
      for (let depth = node.path.length - 1; depth > 0; depth -= 1) {
        const key = node.path.slice(0, depth).join(".");
        if (!this.modules.has(key)) continue;
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = `Fold ${key}`;
        button.addEventListener("click", () => { this.open.delete(key); this.draw(); });
        this.words.append("\n", button);
      }
    }

    all(isOpen) {
      this.open = new Set(isOpen ? this.modules.keys() : []);
      this.draw();
      this.fit();
    }

    find() {
      const wanted = this.search.value.trim().toLowerCase();
      let first;
      for (const { box, group, x, y } of this.drawn.values()) {
        const isFound = wanted !== "" && box.members.some((i) => {
          const node = this.nodes[i];
          return [node.path.join("."), node.kind, ...(node.marks || []), ...(node.lines || [])].some((each) => each.toLowerCase().includes(wanted));
        });
        group.classList.toggle("found", isFound);
        if (isFound && !first) first = { x, y };
      }
      if (first) { this.at = { ...first }; this.place(); }
    }

    // All of it, or its first rows where names would be too small to read.
    fit(most = LEGIBLE) {
      const [width, height] = [this.view.clientWidth || 600, this.view.clientHeight || 540];
      this.scale = Math.max(0.6, Math.min(most, Math.max(this.size.width / width, this.size.height / height) * 1.05));
      this.at = { x: 0, y: Math.min(this.size.height / 2, (height * this.scale) / 2) - 20 };
      this.place();
    }

    // Paper cannot be moved: all of it, on as many pages as names need that can be read.
    print(isPrinted) {
      const [width, height] = [this.size.width + 20, this.size.height + 20];
      this.isPrinted = isPrinted;
      this.view.style.height = isPrinted ? `${height / Math.max(1, width / PAPER[0], height / PAPER[1])}px` : "";
      this.svg.setAttribute("viewBox", `${-width / 2} -10 ${width} ${height}`);
      this.place();
    }

    zoom(factor) { this.scale *= factor; this.place(); }

    place() {
      if (!this.svg || !this.at || this.isPrinted) return;
      const [width, height] = [(this.view.clientWidth || 600) * this.scale, (this.view.clientHeight || 540) * this.scale];
      this.svg.setAttribute("viewBox", `${this.at.x - width / 2} ${this.at.y - height / 2} ${width} ${height}`);
    }

    moves() {
      let from;
      this.view.addEventListener("pointerdown", (event) => { from = { x: event.clientX, y: event.clientY, at: this.at }; this.moved = false; });
      this.view.addEventListener("pointermove", (event) => {
        if (!from) return;
        const [dx, dy] = [event.clientX - from.x, event.clientY - from.y];
        if (Math.abs(dx) + Math.abs(dy) > 4) this.moved = true;
        this.at = { x: from.at.x - dx * this.scale, y: from.at.y - dy * this.scale };
        this.place();
      });
      addEventListener("pointerup", () => { from = undefined; });
      this.view.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
        event.preventDefault();
        this.zoom(event.deltaY > 0 ? 1.1 : 0.9);
      }, { passive: false });
      addEventListener("resize", () => this.place());
      addEventListener("beforeprint", () => this.print(true));
      addEventListener("afterprint", () => this.print(false));
    }
  }

  document.querySelectorAll("[data-graph]").forEach((place) => {
    new Graph(place, JSON.parse(document.getElementById(place.dataset.graph).textContent));
  });
})();
