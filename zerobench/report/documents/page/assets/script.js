"use strict";
// What a mark says (its aria-label) beside the pointer or, by the arrow keys, beside the mark; buttons that copy; tables
// that a click on a head sorts; a click on a mark that leads to its trial's row. Without this script the page lacks these
// four and nothing else.
(() => {
  const tip = document.getElementById("tip");
  const marksOf = (svg) => [...svg.querySelectorAll(".role-mark [aria-label]")];
  let lit = null;
  const hide = () => {
    if (lit) lit.classList.remove("lit");
    lit = null;
    tip.hidden = true;
  };
  const show = (mark, x, y) => {
    if (mark !== lit) {
      hide();
      lit = mark;
      mark.classList.add("lit");
      tip.textContent = mark.getAttribute("aria-label");
      tip.hidden = false;
    }
    const right = document.documentElement.clientWidth - tip.offsetWidth - 8;
    const above = y - tip.offsetHeight - 12;
    tip.style.left = `${Math.max(8, Math.min(x + 12, right))}px`;
    tip.style.top = `${above > 8 ? above : y + 20}px`;
  };
  addEventListener("pointermove", (event) => {
    const mark = event.target instanceof Element && event.target.closest("figure .role-mark [aria-label]");
    if (mark) show(mark, event.clientX, event.clientY);
    else if (lit && document.activeElement !== lit.ownerSVGElement) hide();
  }, { passive: true });
  addEventListener("scroll", hide, { passive: true });
  for (const svg of document.querySelectorAll("figure svg")) {
    svg.tabIndex = 0;
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") hide();
      const marks = step ? marksOf(svg) : [];
      if (!marks.length) return;
      event.preventDefault();
      const at = marks.indexOf(lit);
      const mark = marks[at < 0 ? (step > 0 ? 0 : marks.length - 1) : (at + step + marks.length) % marks.length];
      const box = mark.getBoundingClientRect();
      show(mark, box.left + box.width / 2, box.top);
    });
  }
  const rows = [...document.querySelectorAll("section[aria-labelledby=trials] tbody tr")];
  const rowOf = (said) => {
    const names = (row) => [",", ":"].some((end) => said.startsWith(row.cells[0].textContent + end));
    return rows.filter(names).sort((a, b) => b.cells[0].textContent.length - a.cells[0].textContent.length)[0];
  };
  addEventListener("click", (event) => {
    const mark = event.target instanceof Element && event.target.closest("figure .role-mark [aria-label]");
    const row = mark && rowOf(mark.getAttribute("aria-label").replace(/^! /, ""));
    if (!row) return;
    for (const other of rows) other.classList.toggle("found", other === row);
    row.scrollIntoView({ block: "center" });
  });
  const number = (text) => (/^[-+]?[\d.,]+( ?%)?$/.test(text) ? parseFloat(text.replaceAll(",", "")) : NaN);
  const sort = (table, head) => {
    const ascending = head.getAttribute("aria-sort") !== "ascending";
    const at = head.cellIndex;
    const keyed = [...table.tBodies[0].rows].map((row) => {
      const text = row.cells[at].textContent;
      return { row, text, number: number(text), blank: text === "" || text === "-" };
    });
    const compare = (a, b) => (Number.isNaN(a.number - b.number) ? a.text.localeCompare(b.text) : a.number - b.number);
    keyed.sort((a, b) => a.blank - b.blank || (ascending ? compare(a, b) : compare(b, a)));
    table.tBodies[0].append(...keyed.map(({ row }) => row));
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  };
  for (const head of document.querySelectorAll("thead th")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(head.closest("table"), head));
    head.append(button);
  }
  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.source);
      try {
        await navigator.clipboard.writeText(source.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(source);
        button.textContent = "Selected: copy with your keyboard";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }
})();
