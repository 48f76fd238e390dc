'use strict';
(() => {
  const root = document.documentElement;
  const dark = () => root.dataset.theme ? root.dataset.theme === 'dark'
    : matchMedia('(prefers-color-scheme: dark)').matches;
  const toggle = document.getElementById('theme');
  const label = () => {
    toggle.textContent = dark() ? 'Light' : 'Dark';
    toggle.setAttribute('aria-label', `Switch to ${dark() ? 'light' : 'dark'} mode`);
  };
  const store = (value) => {
    try { return value ? localStorage.setItem('shardplan-theme', value)
      : localStorage.getItem('shardplan-theme'); } catch { return null; }
  };
  const kept = store();
  if (kept === 'dark' || kept === 'light') root.dataset.theme = kept;
  toggle.onclick = () => { root.dataset.theme = dark() ? 'light' : 'dark'; store(root.dataset.theme); label(); };
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', label);
  label();

  // Sorting: numbers by data-v, largest first; texts as people count; missing values last.
  const order = new Intl.Collator('en', { numeric: true });
  document.querySelectorAll('thead button').forEach((button) => {
    button.onclick = () => {
      const head = button.parentElement, table = head.closest('table'), body = table.tBodies[0];
      const column = head.cellIndex, numeric = head.classList.contains('n');
      const was = head.getAttribute('aria-sort');
      const up = was ? was === 'descending' : !numeric;
      const value = (row) => numeric ? parseFloat(row.cells[column].dataset.v) : row.cells[column].textContent;
      const rows = [...body.rows].map((row) => [value(row), row]);
      rows.sort(([a], [b]) => {
        if (!numeric) return up ? order.compare(a, b) : order.compare(b, a);
        if (isNaN(a) || isNaN(b)) return isNaN(a) - isNaN(b);
        return up ? a - b : b - a;
      });
      table.querySelectorAll('[aria-sort]').forEach((other) => other.removeAttribute('aria-sort'));
      head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
      body.append(...rows.map(([, row]) => row));
    };
  });

  document.querySelectorAll('input[data-for]').forEach((input) => {
    const rows = [...document.getElementById(input.dataset.for).tBodies[0].rows];
    const found = document.querySelector(`output[data-for="${input.dataset.for}"]`);
    const texts = rows.map((row) => row.textContent.toLowerCase());
    const count = (n) => n.toLocaleString('en');
    input.oninput = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      rows.forEach((row, i) => {
        row.hidden = !words.every((word) => texts[i].includes(word));
        shown += !row.hidden;
      });
      found.textContent = `${count(shown)} of ${count(rows.length)}`;
    };
  });

  // Details of a chart: hover, tap, or arrow keys.
  document.querySelectorAll('svg.plot').forEach((plot) => {
    const marks = [...plot.querySelectorAll('rect,circle')];
    const line = plot.closest('.scroll').nextElementSibling;
    let at = -1, keys = false;
    const show = (i) => {
      if (at >= 0) marks[at].classList.remove('on');
      at = i;
      marks[i].classList.add('on');
      line.textContent = marks[i].querySelector('title').textContent;
    };
    const pick = (event) => { const i = marks.indexOf(event.target); if (i >= 0) show(i); };
    // Scrolling by keys moves bars under a mouse that rests: that is no choice of a bar.
    plot.addEventListener('pointerover', (event) => { if (!keys) pick(event); });
    plot.addEventListener('pointermove', (event) => {
      if (keys && (event.movementX || event.movementY)) { keys = false; pick(event); }
    });
    plot.addEventListener('click', pick);
    plot.addEventListener('keydown', (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step || !marks.length) return;
      event.preventDefault();
      keys = true;
      show(Math.min(Math.max(at + step, 0), marks.length - 1));
      marks[at].scrollIntoView({ block: 'nearest', inline: 'nearest' });
    });
  });
})();
