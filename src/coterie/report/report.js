"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  root.classList.add("scripted");

  // Theme: follows the system until the button is used.
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const nameTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; nameTheme(); });
  system.addEventListener("change", nameTheme);
  nameTheme();

  // Tooltips: titles move into data-tip, so that the browser's own do not show as well.
  const tip = document.getElementById("tip");
  for (const title of all("svg.chart title")) {
    title.parentNode.dataset.tip = title.textContent;
    title.remove();
  }
  for (const titled of all("main [title]")) {
    titled.dataset.tip = titled.title;
    titled.removeAttribute("title");
  }
  let lit = null;
  const hide = () => {
    tip.hidden = true;
    if (lit) lit.classList.remove("lit");
    lit = null;
  };
  const show = (target) => {
    if (target === lit) return;
    hide();
    lit = target;
    target.classList.add("lit");
    tip.textContent = target.dataset.tip;
    tip.hidden = false;
    const at = target.getBoundingClientRect(), box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, at.left + at.width / 2 - box.width / 2), innerWidth - box.width - 8);
    const above = at.top - box.height - 8;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 8 ? above : Math.min(at.bottom + 8, innerHeight - box.height - 8)}px`;
  };
  const visible = (mark) => !mark.closest(".off");
  const nearest = (chart, event) => {
    let best = null, least = 28 * 28;
    for (const mark of all("[data-tip]", chart)) {
      if (!visible(mark)) continue;
      const box = mark.getBoundingClientRect();
      const across = box.left + box.width / 2 - event.clientX, down = box.top + box.height / 2 - event.clientY;
      const distance = across * across + down * down;
      if (distance < least) { least = distance; best = mark; }
    }
    return best;
  };
  const point = (event) => {
    const chart = event.target.closest("svg.chart");
    const target = chart ? nearest(chart, event) : event.target.closest("[data-tip]");
    if (target) show(target);
    else if (!document.activeElement.dataset.tip) hide();
  };
  document.addEventListener("pointermove", point);
  document.addEventListener("pointerdown", point);
  document.addEventListener("scroll", hide, { passive: true });

  // Keys: a chart and a table are one stop each; arrows move through their values.
  for (const table of all("table.heat")) {
    const first = table.querySelector(".cell");
    if (first) first.tabIndex = 0;
  }
  const place = (mark) => { const box = mark.getBoundingClientRect(); return box.left + box.width / 2; };
  const stepChart = (chart, key) => {
    const groups = all(".series", chart).filter(visible).map((group) => all("[data-tip]", group)).filter((marks) => marks.length);
    if (!groups.length) return;
    const row = Math.max(0, groups.findIndex((marks) => marks.includes(lit)));
    const column = groups[row].indexOf(lit);
    if (column < 0) { show(groups[0][0]); return; }
    if (key === "ArrowLeft" || key === "ArrowRight") {
      const next = column + (key === "ArrowRight" ? 1 : -1);
      show(groups[row][Math.min(Math.max(0, next), groups[row].length - 1)]);
      return;
    }
    const other = groups[(row + (key === "ArrowDown" ? 1 : groups.length - 1)) % groups.length];
    const here = place(lit);
    show(other.reduce((best, mark) => (Math.abs(place(mark) - here) < Math.abs(place(best) - here) ? mark : best)));
  };
  const stepTable = (cell, key) => {
    const rows = all("tbody tr", cell.closest("table")).filter(visible).map((row) => all(".cell", row).filter(visible));
    const row = rows.findIndex((cells) => cells.includes(cell));
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[key];
    const column = rows[row].indexOf(cell) + move[1];
    const target = rows[row + move[0]] && rows[row + move[0]][Math.min(column, rows[row + move[0]].length - 1)];
    if (!target) return;
    cell.tabIndex = -1;
    target.tabIndex = 0;
    target.focus();
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { hide(); return; }
    if (!event.key.startsWith("Arrow")) return;
    const here = document.activeElement;
    if (here.matches("svg.chart")) { event.preventDefault(); stepChart(here, event.key); }
    else if (here.matches(".cell")) { event.preventDefault(); stepTable(here, event.key); }
  });
  document.addEventListener("focusin", (event) => {
    if (!event.target.matches(":focus-visible")) return;
    if (event.target.dataset.tip) show(event.target);
    else hide();
  });
  document.addEventListener("focusout", hide);

  // Legends: a click shows or hides a series.
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-toggles]");
    if (!button) return;
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    for (const series of all(".series", button.closest("figure"))) {
      if (series.dataset.series === button.dataset.toggles) series.style.display = on ? "" : "none";
    }
  });

  // Filters: an element is hidden if it says something else than what is chosen, or if nothing it needs is left.
  const form = document.getElementById("filters");
  const apply = () => {
    const chosen = all("[data-filter]", form).map((field) => [field.dataset.filter, field.value]).filter(([, value]) => value);
    const controls = document.getElementById("controls").checked;
    for (const item of all("main [data-family], main [data-defence], main [data-adversary], main [data-control]")) {
      const other = chosen.some(([key, value]) => key in item.dataset && !item.dataset[key].split("\n").includes(value));
      item.classList.toggle("off", other || (!controls && item.dataset.control === "yes"));
    }
    for (const holder of all("[data-needs]").reverse()) {
      if (!all(holder.dataset.needs, holder).some((item) => !item.closest(".off"))) holder.classList.add("off");
    }
    for (const section of all("[data-section]")) {
      const left = all(section.dataset.section, section).some((item) => !item.closest(".off"));
      const nothing = section.querySelector(".nothing");
      if (nothing) nothing.style.display = left ? "none" : "block";
    }
    const cells = all("table.heat .cell");
    document.getElementById("shown").textContent = `${cells.filter(visible).length} of ${cells.length} findings shown`;
    for (const table of all("table.heat")) {
      const left = all(".cell", table).filter(visible);
      if (left.length && !left.some((cell) => cell.tabIndex === 0)) left[0].tabIndex = 0;
    }
    hide();
  };
  if (form) {
    form.addEventListener("change", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(apply));
    apply();
  }
})();
