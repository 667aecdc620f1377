(() => {
  // What scrolls must be reachable with the keyboard: give it a tab stop, a role and a name.
  const boxes = "pre, figure, table, .output, mjx-container[display='true'], div.math, .pst-scrollable-table-container";
  const names = { FIGURE: "Figure", PRE: "Code or output", "MJX-CONTAINER": "Equation" };

  function mark() {
    for (const box of document.querySelectorAll(boxes)) {
      const scrolls = box.scrollWidth > box.clientWidth + 1 && getComputedStyle(box).overflowX !== "visible";
      if (scrolls && box.tabIndex < 0) {
        box.tabIndex = 0;
        if (!box.hasAttribute("aria-label") && !box.hasAttribute("role")) {
          box.setAttribute("role", "region");
          box.setAttribute("aria-label", `${names[box.tagName] || "Table or output"}, scrolls sideways`);
        }
      }
    }
  }

  addEventListener("load", () => {
    mark();
    window.MathJax?.startup?.promise?.then(mark);
  });
  addEventListener("resize", mark);

  // Paper is white: print in the light theme, whatever the screen shows.
  const page = document.documentElement.dataset;
  let shown;
  addEventListener("beforeprint", () => { shown = page.theme; page.theme = "light"; });
  addEventListener("afterprint", () => { page.theme = shown; });
})();
