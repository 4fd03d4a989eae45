// The page: asks, follows what becomes of it, and shows it. Every text from the service is set as text; the coloured
// picture is HTML that the service has escaped.

const find = (selector, inside = document) => inside.querySelector(selector)
const form = find('#ask')
const panels = [...document.querySelectorAll('.panel')]
const results = find('#results')
const ended = ['finished', 'failed', 'cancelled']
let served = [] // what is said of the models
const ESTIMATE_FROM = 4 // seconds that exact values take, from which on an estimate is shown before
let running = [] // the ids that Cancel ends
let asked = 0 // so that answers to an earlier question are not shown

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties)
  made.append(...children)
  return made
}

async function call(path, options = {}) {
  const answer = await fetch(path, options)
  if (answer.ok) return answer
  const told = await answer.json().catch(() => ({}))
  throw new Error(told.error ?? `${answer.status} ${answer.statusText}`)
}

const post = (path, body) =>
  call(path, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) })
    .then((answer) => answer.json())

// A value as a command line writes it: a number, true, a list joined by commas, or a text.
function value(text) {
  try { return JSON.parse(text) } catch { return text.includes(',') ? text.split(',').filter(Boolean).map(value) : text }
}

function answerTo(question) {
  const kind = form.elements[question].value
  const fields = form.elements[`${question}-fields`].value.trim()
  if (!kind) {
    if (fields) throw new Error(`${question}: choose what the fields ${fields} belong to`)
    return undefined
  }
  // Words are apart by spaces, but for those within quotes.
  const pairs = fields ? fields.match(/(?:"[^"]*"|\S)+/g).map((word) => [word.split('=')[0], value(word.slice(word.indexOf('=') + 1))]) : []
  return { kind, ...Object.fromEntries(pairs) }
}

function questionOf(panel) {
  const text = find('textarea', panel).value
  const reads = served.find((one) => one.name === find('select', panel).value)?.texts
  const numbers = !reads && /^[\s\d,]+$/.test(text) ? text.split(/[\s,]+/).filter(Boolean).map(Number) : null
  const readout = form.elements.readout.value.trim()
  const body = {
    model: find('select', panel).value, tokens: numbers ?? text,
    flips: answerTo('flips'), measure: answerTo('measure'), engine: answerTo('engine'),
    readout: /^\d+$/.test(readout) ? Number(readout) : readout || 'auto',
    output: form.elements.output.value || undefined,
  }
  return JSON.parse(JSON.stringify(body))
}

const heading = (question) => `${question.model}: ${JSON.stringify(question.tokens).replace(/^"|"$/g, '').slice(0, 90)}`

function card(question) {
  const shown = element('article', { className: 'result' }, element('h3', { textContent: heading(question) }),
    element('p', { className: 'state' }), element('progress', { max: 1, ariaLabel: 'flips measured' }),
    element('div', { className: 'picture' }), element('p', { className: 'downloads small' }))
  results.append(shown)
  return shown
}

async function show(job, where, label) {
  const base = `/v1/measurements/${job.id}`
  const html = await (await call(`${base}/fragment`)).text()
  find('.picture', where).innerHTML = html
  find('.picture', where).dataset.shown = label
  const links = [['result.parquet', 'Parquet'], ['picture.svg', 'SVG'], ['page', 'Page'], ['result.json', 'JSON']]
  find('.downloads', where).replaceChildren(...links.flatMap(([path, name]) => [
    element('a', { href: `${base}/${path}`, textContent: name, download: path === 'page' ? '' : path }), ' ']))
}

function tell(job, where, what) {
  const state = find('.state', where)
  state.className = job.state === 'failed' ? 'state bad' : 'state'
  const more = job.found?.warnings?.length ? ` ${job.found.warnings.join(' ')}` : ''
  const engine = job.found?.engine ? ` by ${job.found.engine.name}` : ''
  state.textContent = job.state === 'running'
    ? `${what}: ${job.state}, ${job.done} of ${job.total || job.about.flips} flips`
    : `${what}: ${job.state}${job.state === 'finished' ? `, ${job.done} flips${engine}.` : '.'} ${job.message}${more}`
  const bar = find('progress', where)
  bar.hidden = ended.includes(job.state)
  if (job.total) bar.value = job.done / job.total; else bar.removeAttribute('value')
}

// Follows a job by server-sent events until it has ended, or something else is shown: a browser keeps six connections.
const streams = new Set()
function leave() {
  streams.forEach((events) => events.close())
  streams.clear()
}

function follow(job, told) {
  return new Promise((done, failed) => {
    told(job)
    if (ended.includes(job.state)) { done(job); return }
    const events = new EventSource(`/v1/measurements/${job.id}/events`)
    streams.add(events)
    const close = () => { events.close(); streams.delete(events) }
    const heard = (event) => {
      const now = JSON.parse(event.data)
      told(now)
      if (ended.includes(now.state)) { close(); done(now) }
    }
    events.onerror = () => { // otherwise the browser connects again
      if (events.readyState === EventSource.CLOSED) { close(); failed(new Error('the service refuses; load the page again with its token')) }
    }
    for (const state of ['queued', 'running', ...ended]) events.addEventListener(state, heard)
  })
}

async function measure(question, where, turn) {
  const [what, label] = naming(question)
  const estimable = !question.engine || question.engine.kind === 'auto'
  // Random combinations of the outputs give the norm to 18 %, and cost a twentieth of all outputs.
  const sketch = !question.measure || question.measure.kind === 'l2' ? { sketch: 16 } : {}
  const rough = { ...question, engine: { kind: 'first-order', verify: 8, ...sketch } }
  // A measure that has no first-order estimate is refused, and exact values come alone.
  const explain = (one) => post('/v1/measurements?explain=1', one).then((about) => about.seconds + about.compiling).catch(() => Infinity)
  const [exact, estimate] = estimable ? await Promise.all([explain(question), explain(rough)]) : [0, Infinity]
  if (exact > ESTIMATE_FROM && estimate < exact / 2) {
    const first = await post('/v1/measurements', rough).catch(() => null)
    if (first && turn === asked) {
      running.push(first.id)
      follow(first, (now) => turn === asked && find('.picture', where).dataset.shown !== 'exact' && tell(now, where, 'Estimate'))
        .then((now) => now.state === 'finished' && turn === asked && find('.picture', where).dataset.shown !== 'exact' && show(now, where, 'estimate'))
        .catch(() => {}) // the exact values tell
    }
  }
  const job = await post('/v1/measurements', question)
  running.push(job.id)
  find('#cancel').disabled = false
  const now = await follow(job, (at) => turn === asked && tell(at, where, what))
  if (turn !== asked) return
  if (now.state === 'finished') await show(now, where, label).catch(() => {})
  return now
}

const naming = (question) => question.engine?.kind === 'first-order' ? ['Estimate', 'estimate'] : ['Exact values', 'exact']

function failed(where, error) {
  where.className = where.classList.contains('state') ? 'state bad' : 'bad'
  where.textContent = error.message
}

form.addEventListener('submit', async (event) => {
  event.preventDefault()
  const said = find('#said')
  const turn = ++asked
  said.className = ''
  said.textContent = 'Asking…'
  running = []
  leave()
  results.replaceChildren()
  try {
    const questions = panels.filter((panel) => !panel.hidden && find('textarea', panel).value).map(questionOf)
    const found = await Promise.all(questions.map((question) => {
      const where = card(question)
      return measure(question, where, turn).catch((error) => {
        if (turn !== asked) return null
        find('progress', where).hidden = true
        failed(find('.state', where), error)
        failed(said, error)
        return null
      })
    }))
    if (turn !== asked) return
    const jobs = found.filter(Boolean)
    if (jobs.length === found.length) said.textContent = jobs.map((job) => `${job.question.model}: ${job.state}.`).join(' ')
    history.replaceState(null, '', `#${jobs.map((job) => job.id).join(',')}`)
  } catch (error) {
    if (turn === asked) failed(said, error)
  }
  find('#cancel').disabled = true
  remember()
})

// A job that has ended in the meantime would be forgotten.
find('#cancel').addEventListener('click', () => running.forEach((id) => {
  const path = `/v1/measurements/${id}`
  call(path).then((answer) => answer.json())
    .then((job) => ended.includes(job.state) ? null : call(path, { method: 'DELETE' })).catch(() => {})
}))

find('#second').addEventListener('click', (event) => {
  panels[1].hidden = !panels[1].hidden
  event.target.setAttribute('aria-expanded', String(!panels[1].hidden))
  event.target.textContent = panels[1].hidden ? 'Compare with a second text or model' : 'Leave the second out'
  if (!panels[1].hidden) find('textarea', panels[1]).focus()
})

// A classifier's labels are measured by their log-probability: choosing one answers two of the questions.
function offerLabels(panel) {
  const labels = served.find((one) => one.name === find('[name=model]', panel).value)?.labels ?? []
  find('.labels', panel).hidden = labels.length === 0
  find('[name=label]', panel).replaceChildren(element('option', { value: '', textContent: 'none' }),
    ...labels.map((label) => element('option', { value: label, textContent: label })))
}
for (const panel of panels) {
  find('[name=model]', panel).addEventListener('change', () => offerLabels(panel))
  find('[name=label]', panel).addEventListener('change', (event) => {
    const label = event.target.value
    form.elements.measure.value = label ? 'log-probability' : ''
    form.elements['measure-fields'].value = label ? `token=${JSON.stringify(label)}` : ''
    form.elements.output.value = label ? 'labels' : ''
  })
}
call('/v1/models').then((answer) => answer.json()).then((models) => {
  served = models
  panels.forEach(offerLabels)
}).catch(() => {})

async function recall(ids) {
  const turn = ++asked
  leave()
  results.replaceChildren()
  for (const id of ids) {
    const job = await call(`/v1/measurements/${id}`).then((answer) => answer.json()).catch(() => null)
    if (!job || turn !== asked) continue
    const where = card(job.question)
    const [what, label] = naming(job.question)
    follow(job, (now) => tell(now, where, what))
      .then((now) => now.state === 'finished' && show(now, where, label))
      .catch((error) => failed(find('.state', where), error))
  }
}

async function remember() {
  const jobs = await call('/v1/measurements').then((answer) => answer.json()).catch(() => [])
  find('#history').replaceChildren(...jobs.slice(0, 30).map((job) => {
    const open = element('button', { type: 'button', className: 'link', textContent: heading(job.question) })
    open.addEventListener('click', () => { location.hash = job.id })
    const estimate = job.question.engine?.kind === 'first-order' ? ', estimate' : ''
    const does = ended.includes(job.state) ? 'Forget' : 'Cancel'
    const forget = element('button', { type: 'button', textContent: does, ariaLabel: `${does} ${heading(job.question)}` })
    forget.addEventListener('click', async () => {
      const at = [...document.querySelectorAll('#history li')].indexOf(forget.parentElement)
      await call(`/v1/measurements/${job.id}`, { method: 'DELETE' }).catch(() => {})
      await remember()
      const left = document.querySelectorAll('#history li') // the focus stays in the list
      find('button:last-child', left[Math.min(at, left.length - 1)] ?? form)?.focus()
    })
    return element('li', {}, open, element('span', { className: 'small', textContent: `${job.state}${estimate}` }), forget)
  }))
}

const fromAddress = () => recall(location.hash.slice(1).split(',').filter(Boolean))
window.addEventListener('hashchange', fromAddress)
if (location.hash.length > 1) fromAddress()
remember()
