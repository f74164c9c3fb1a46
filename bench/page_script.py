"""What the measured page is asked, as JavaScript. Charts are `.chart` elements that carry their state as data."""

from __future__ import annotations

DRAWN = """() => {
  const seen = [...document.querySelectorAll('.chart')].filter((chart) => {
    const box = chart.getBoundingClientRect();
    return chart.checkVisibility() && box.bottom > 0 && box.top < innerHeight;
  });
  return seen.length > 2 && seen.every((chart) => chart.dataset.state === 'drawn');
}"""
"""Whether there are charts in the window and all of them are drawn."""

CARDS = """() => {
  const cards = [...document.querySelectorAll('scalar-card')].filter((card) => {
    const box = card.getBoundingClientRect();
    return box.bottom > 0 && box.top < innerHeight;
  });
  return cards.length > 2 && cards.every((card) => card.querySelector('line-chart') &&
    !card.querySelector('mat-spinner'));
}"""
"""The same of TensorBoard's page."""

STAMP = """() => {
  const watch = new MutationObserver((records) => {
    for (const record of records) record.target.lastDrawn = performance.now();
  });
  watch.observe(document.body, {subtree: true, attributes: true, attributeFilter: ['data-drawn']});
}"""
"""Note on each chart when it was last drawn."""

ZOOM = """async ([from, to]) => {
  const charts = [...document.querySelectorAll('.chart')].filter((chart) => chart.chart &&
    chart.getBoundingClientRect().top < innerHeight);
  const [path, query = ''] = location.hash.split('?');
  const params = new URLSearchParams(query);
  params.set('zoom', `step:${from}:${to}`);
  performance.clearResourceTimings();
  const begun = performance.now();
  location.hash = `${path}?${params}`;
  const answers = () => performance.getEntriesByType('resource')
    .filter((entry) => entry.name.includes('/api/series') && entry.startTime >= begun);
  let last = begun;
  while (performance.now() - begun < 20000) {
    await new Promise((done) => setTimeout(done, 20));
    const [drawn, asked] = [charts.map((chart) => chart.lastDrawn ?? 0), answers()];
    if (!asked.length || asked.some((entry) => !entry.responseEnd)) continue;
    last = Math.max(...drawn);
    const answered = Math.max(...asked.map((entry) => entry.responseEnd));
    if (Math.min(...drawn) >= answered && performance.now() - Math.max(last, answered) > 300) break;
  }
  return {seconds: (last - begun) / 1000, charts: charts.length};
}"""
"""Zoom to steps by the address; tell after how many seconds the last chart in sight was drawn from the finer data."""

TOPS = """() => [...document.querySelectorAll('.chart')].filter((chart) => chart.chart &&
    chart.getBoundingClientRect().top < innerHeight).map((chart) => [chart.dataset.chart, chart.reach[1]])"""
"""How far up each chart in sight reaches."""

FOLLOW = """(name) => {
  const chart = document.querySelector(`.chart[data-chart="${name}"]`);
  chart.scrollIntoView({block: 'center'});
  const seen = [];
  const watch = new MutationObserver(() => requestAnimationFrame(() => {
    seen.push([(Date.now() / 1000) % 100, Number(chart.querySelector('.chart-read').textContent)]);
  }));
  watch.observe(chart, {attributes: true, attributeFilter: ['data-drawn']});
  window.followed = () => { watch.disconnect(); delete window.followed; return seen; };
}"""
"""Write down when a chart was drawn (in the frame after, when it is on the screen) and the newest value in it, until
`followed()` is called, which returns it."""
