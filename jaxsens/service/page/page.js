// The page: asks, follows what becomes of it, and draws it. Every text from the service is set as text, never as HTML.

const find = (selector, inside = document) => inside.querySelector(selector)
const all = (selector, inside = document) => [...inside.querySelectorAll(selector)]
function make(name, properties = {}, ...children) {
  const made = document.createElement(name)
  for (const [key, value] of Object.entries(properties)) key.includes('-') ? made.setAttribute(key, value) : (made[key] = value)
  made.append(...children)
  return made
}
const number = (value) => value === null || value === undefined ? 'not finite' : Number(value.toPrecision(3)).toString()
const ended = ['finished', 'failed', 'cancelled']
const ESTIMATE_FROM = 4 // seconds that exact values take, from which on an estimate is shown before

const elsewhere = ['kind', 'positions', 'sample', 'seed', 'name', 'against_name', 'outputs', 'groups']
let served = [], questions = {}, running = [], asked = 0, shown = []

async function call(path, options = {}) {
  const answer = await fetch(path, options)
  if (answer.ok) return answer
  const body = await answer.json().catch(() => ({}))
  throw Object.assign(new Error(body.error ?? `${answer.status} ${answer.statusText}`), { problems: body.problems ?? [], status: answer.status })
}
const json = (path, options) => call(path, options).then((answer) => answer.json())
const post = (path, body) => json(path, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) })

// The form

const modelOf = (second) => (second && find('#model2').value) || find('#model').value
const labels = () => served.find((one) => one.name === modelOf())?.labels ?? []

// Which kinds of flips, measures and engines there are, with which fields, and what they do, the service says.
const defaults = { flips: '', measure: 'l2', engine: 'auto' }
const help = (name, kind) => kind ? (questions[name][kind]?.description ?? '').replaceAll('`', '') : 'Neighbours of the tokens of a text, otherwise every other symbol.'
function drawQuestion(name, chosen, given = {}) {
  const place = find(`.field[data-path="${name}"]`)
  const select = make('select', { id: name }, ...[...defaults[name] ? [] : [''], ...Object.keys(questions[name])]
    .map((kind) => make('option', { value: kind, textContent: kind || 'what suits the model' })))
  select.value = chosen
  select.addEventListener('change', () => { drawQuestion(name, select.value); find(`#${name}`).focus(); price() })
  const fields = Object.entries(questions[name][chosen]?.properties ?? {}).filter(([key]) => !elsewhere.includes(key))
  place.replaceChildren(make('div', { className: 'kinds' }, make('div', {}, make('label', { htmlFor: name, textContent: name[0].toUpperCase() + name.slice(1) }), select),
    ...fields.map(([key, schema]) => control(name, key, schema, given[key]))),
  make('p', { className: 'help', textContent: help(name, chosen) }))
}

function control(name, key, schema, value) {
  const id = `${name}-${key}`
  const label = make('label', { htmlFor: id, textContent: schema.title })
  if (['token', 'against'].includes(key) && labels().length) {
    const none = key === 'against' ? [make('option', { value: '', textContent: 'none' })] : []
    const select = make('select', { id }, ...none, ...labels().map((one) => make('option', { value: JSON.stringify(one), textContent: one })))
    if (value !== undefined) select.value = JSON.stringify(value)
    return make('div', {}, label, select)
  }
  const usual = schema.default === undefined || schema.default === null ? '' : JSON.stringify(schema.default)
  const numeric = ['integer', 'number'].includes(schema.type) || schema.anyOf?.some((one) => one.type === 'integer')
  return make('div', {}, label, make('input', { id, autocomplete: 'off', spellcheck: false, inputMode: numeric ? 'numeric' : 'text',
    placeholder: usual, value: value === undefined ? '' : JSON.stringify(value) }))
}

// A value as JSON writes it; otherwise a list whose parts are apart by commas, or a text.
function valueOf(text) {
  try { return JSON.parse(text) } catch { return text.includes(',') ? text.split(',').map((one) => one.trim()).filter(Boolean).map(valueOf) : text }
}
function answerTo(name) {
  const kind = find(`#${name}`).value
  const given = all(`[id^="${name}-"]`).filter((one) => one.value.trim()).map((one) => [one.id.slice(name.length + 1), valueOf(one.value.trim())])
  if (name === 'flips') {
    const [positions, sample] = ['#positions', '#sample'].map((id) => find(id).value.trim())
    if (positions) given.push(['positions', [valueOf(positions)].flat()])
    if (sample) given.push(['sample', valueOf(sample)])
    if (!kind && given.length) return { kind: reads() ? 'neighbours' : 'substitute', ...Object.fromEntries(given) }
  }
  return kind ? { kind, ...Object.fromEntries(given) } : undefined
}
const reads = (second) => served.find((one) => one.name === modelOf(second))?.texts

function questionOf(second) {
  const text = find(second ? '#text2' : '#text').value
  const numbers = !reads(second) && /^[\s\d,]+$/.test(text) ? text.split(/[\s,]+/).filter(Boolean).map(Number) : null
  const readout = find('#readout').value.trim(), measure = answerTo('measure'), engine = answerTo('engine')
  const body = { model: modelOf(second), tokens: numbers ?? text, flips: answerTo('flips'), measure, engine,
    readout: /^\d+$/.test(readout) ? Number(readout) : readout || 'auto',
    output: find('#output').value || (labels().includes(measure?.token) ? 'labels' : undefined) }
  return JSON.parse(JSON.stringify(body))
}

function fill(question, second) {
  find('#text').value = typeof question.tokens === 'string' ? question.tokens : [question.tokens].flat(2).join(' ')
  find('#model').value = question.model
  find('#compare').checked = Boolean(second)
  if (second) { find('#text2').value = typeof second.tokens === 'string' ? second.tokens : second.tokens.join(' '); find('#model2').value = second.model === question.model ? '' : second.model }
  compare()
  for (const [name, usual] of Object.entries(defaults)) {
    const answer = question[name] ?? {}
    drawQuestion(name, (typeof answer === 'string' ? answer : answer.kind) ?? usual, typeof answer === 'string' ? {} : answer)
  }
  const list = question.flips?.positions
  find('#positions').value = list ? list.map((one) => typeof one === 'string' ? one : JSON.stringify(one)).join(',') : ''
  find('#sample').value = question.flips?.sample ?? ''
  find('#readout').value = question.readout === undefined || question.readout === 'auto' ? '' : String(question.readout)
  find('#output').value = question.output ?? ''
  price()
}

function compare() {
  const two = find('#compare').checked
  find('#second').hidden = find('#other').hidden = !two
  find('label[for=text]').textContent = two ? 'Text A' : 'Text, or symbols as numbers'
}

// What is wrong stands at its field, once.
function clearErrors() {
  all('.error[data-of]').forEach((one) => one.remove())
  all('[aria-invalid]').forEach((one) => { one.removeAttribute('aria-invalid'); one.removeAttribute('aria-describedby') })
  find('#cost').className = ''
}
function wrong(error, second) {
  const lost = []
  for (const { path, remedy } of error.problems ?? []) {
    const parts = path.map((one) => one.replace(/^tokens$/, second ? 'tokens2' : 'tokens'))
    const field = [parts.join('.'), parts[0]].map((one) => find(`.field[data-path="${CSS.escape(one)}"]`)).find(Boolean)
    if (!field || !remedy) { lost.push(remedy); continue }
    const input = document.getElementById(parts.join('-')) ?? find('textarea, input, select', field)
    const id = `error-${parts.join('-')}`
    if (document.getElementById(id)) continue // two texts have one form
    field.append(make('p', { className: 'error', id, 'data-of': input.id, textContent: remedy[0].toUpperCase() + remedy.slice(1) + (/[.)]$/.test(remedy) ? '' : '.') }))
    input.setAttribute('aria-invalid', 'true')
    input.setAttribute('aria-describedby', id)
    if (field.closest('details')) field.closest('details').open = true
  }
  const count = all('.error[data-of]').length
  if (count) {
    find('#cost').className = 'error'
    find('#cost').textContent = count > 1 ? `${count} fields need a change.` : 'One field needs a change.'
    find('[aria-invalid]').focus()
    say(find('#cost').textContent)
  }
  if (!count || lost.length) state(lost.filter(Boolean).join(' ') || error.message, true)
  if (error.status === 413) offer(['Estimate only', estimateOnly], ['Measure 1000 flips', () => { find('#advanced').open = true; find('#sample').value = 1000; ask() }], ['Copy a command', copyCommand])
}

let pricing = 0
function price() {
  clearTimeout(pricing)
  pricing = setTimeout(async () => {
    await ready
    const text = find('#text').value.trim(), turn = asked
    if (!text || running.length) { if (!text) find('#cost').textContent = ''; return }
    const about = await post('/v1/measurements?explain=1', questionOf()).catch(() => null)
    if (turn !== asked || !about || all('.error[data-of]').length) return
    const seconds = about.seconds + about.compiling
    find('#cost').textContent = `${about.flips} flips, ${seconds < 1 ? 'under a second' : seconds < 90 ? `about ${Math.round(seconds)} s` : `about ${Math.round(seconds / 60)} min`}`
  }, 500)
}

// The answer

const say = (text) => { find('#said').textContent = text }
// What helps where a question failed or is too large for the service.
const offer = (...ways) => find('#then').replaceChildren(...ways.map(([textContent, act]) => {
  const button = make('button', { type: 'button', textContent })
  button.addEventListener('click', act)
  return button
}))
const estimateOnly = () => { drawQuestion('engine', 'first-order'); ask() }
const measureAgain = (job) => call(`/v1/measurements/${job.id}`, { method: 'DELETE' }).catch(() => {}).then(ask)
function copyCommand() {
  const { tokens } = questionOf(), said = `'${String(tokens).replaceAll("'", "'\\''")}'`
  const command = `jaxsens measure ${reads() ? `--pretrained FOLDER --text ${said}` : `--config MODEL.toml --tokens ${said}`} --save result.parquet`
  navigator.clipboard.writeText(command).then(() => say('Copied.'), () => {}).then(() => { find('#state').textContent = command })
}
function state(text, bad = false) {
  offer()
  find('#state').className = bad ? 'bad' : ''
  find('#state').textContent = text
  if (bad) say(text)
}
const first = (question, most = 90) => (typeof question.tokens === 'string' ? question.tokens : JSON.stringify(question.tokens)).slice(0, most)
const kindOf = (question, name, usual) => (typeof question[name] === 'string' ? question[name] : question[name]?.kind) ?? usual
const isEstimate = (question) => kindOf(question, 'engine', 'auto') === 'first-order'

function begin(jobsOf) {
  shown = []
  find('#title').textContent = `How much each token moves ${[...new Set(jobsOf.map((one) => one.model))].join(' and ')}`
  const flips = kindOf(jobsOf[0], 'flips', typeof jobsOf[0].tokens === 'string' ? 'neighbours' : 'substitute')
  find('#about').textContent = `${help('flips', flips)} Colour and bar: ${kindOf(jobsOf[0], 'measure', 'l2')}, the largest of the flips of a token.`
  find('#figure').hidden = find('#values').hidden = find('#downloads').hidden = true
  find('#stats').replaceChildren()
  hideTip()
}

let quarter = -1
function tell(job, what) {
  find('#progress').hidden = ended.includes(job.state)
  if (job.state === 'running') {
    const total = job.total || job.about.flips
    state(job.done ? `${what}: ${job.done} of ${total} flips` : `${what}: compiling, then ${total} flips`)
    if (job.total) find('#progress').value = job.done / job.total; else find('#progress').removeAttribute('value')
    const now = job.total ? Math.floor(4 * job.done / job.total) : 0
    if (now !== quarter) { quarter = now; say(find('#state').textContent) }
    return
  }
  quarter = -1
  const more = job.found?.warnings?.length ? ` ${job.found.warnings.join(' ')}` : ''
  const done = job.state === 'finished' ? `${what}: finished.` : job.state === 'queued' ? 'Waiting for the measurements before it.' : `${what}: ${job.state}.`
  state(`${done} ${job.message}${more}`.trim(), job.state === 'failed')
  say(find('#state').textContent)
  if (job.state === 'failed') offer(['Measure again', () => measureAgain(job)], ['Estimate only', estimateOnly])
}

// The tokens of a result: what stands in the text, and the flips of each.
function tokensOf(data) {
  const pieces = data.pieces?.[0] ?? data.tokens[0].map((one) => ` ${one}`)
  const tokens = pieces.map((piece, at) => ({ text: piece.trim() || '␣', glued: at > 0 && !/^\s/.test(piece), flips: [] }))
  const flips = data.flips, values = flips.norm ?? flips.change ?? flips.value
  values.forEach((value, k) => {
    const at = [flips.position[k]].flat()[0]
    const to = flips.replacement?.[k] ?? flips.symbol?.[k] ?? ''
    if (flips.input[k] === 0) tokens[at]?.flips.push({ to: [to].flat().join(' '), value: value ?? 0 })
  })
  for (const one of tokens) {
    one.flips.sort((a, b) => Math.abs(b.value) - Math.abs(a.value))
    one.value = one.flips[0]?.value ?? null
  }
  return tokens
}
function tint(element, value, end) { element.style.setProperty('--v', end ? Math.min(1, Math.abs(value) / end).toFixed(4) : 0); return element }
function tokenOf(one, end) {
  const name = `token${one.flips.length ? '' : ' none'}${one.glued ? ' glued' : ''}`
  if (!one.flips.length) return make('span', { className: name, textContent: one.text })
  const button = make('button', { type: 'button', className: name, textContent: one.text, tabIndex: -1, 'aria-label': `${one.text}: ${number(one.value)}` })
  for (const event of ['focus', 'pointerenter']) button.addEventListener(event, () => showTip(button, one))
  button.addEventListener('pointerleave', (event) => { if (!find('#tip').contains(event.relatedTarget) && document.activeElement !== button) hideTip() })
  return tint(button, one.value, end)
}

function draw() {
  const drawn = shown.filter(Boolean)
  if (!drawn.length) return
  const largest = Math.max(0, ...drawn.flatMap((one) => one.tokens.map((token) => Math.abs(token.value ?? 0))))
  const step = largest ? 10 ** (Math.floor(Math.log10(largest)) - 1) : 1
  const end = Math.ceil(largest / step) * step
  find('#figure').hidden = find('#values').hidden = false
  find('#figure').className = drawn.some((one) => one.estimate) ? 'estimate' : ''
  find('#sentence').replaceChildren(...(drawn.length > 1 ? pairs(drawn, end)
    : [make('div', { className: 'tokens' }, ...drawn[0].tokens.map((one) => tokenOf(one, end)))]))
  find('#sentence').dataset.shown = drawn.every((one) => !one.estimate) ? 'exact' : 'estimate'
  const buttons = all('button.token', find('#sentence'))
  if (buttons.length) buttons[0].tabIndex = 0
  find('#legend').replaceChildren(...[0, 0.25, 0.5, 0.75, 1].map((part) => tint(make('span', { className: 'token', textContent: number(part * end) }), part * end, end)),
    `${drawn[0].signed ? 'size of the change' : 'change'}, largest of the flips of a token`)
  find('#stats').replaceChildren(...drawn.map(stats))
  const rows = drawn.flatMap((one, k) => one.tokens.map((token, at) => [`${drawn.length > 1 ? `${'AB'[k]} ` : ''}${at}`, token.text,
    ...token.flips.length ? [number(token.value), token.flips[0].to, number(mean(token))] : ['not flipped', '', '']]))
  const line = (cell, texts) => make('tr', {}, ...texts.map((text) => make(cell, { textContent: text })))
  find('#values .scroll').replaceChildren(make('table', {}, make('thead', {}, line('th', ['at', 'token', 'largest', 'by', 'mean'])),
    make('tbody', {}, ...rows.map((row) => line('td', row)))))
  downloads(drawn)
}
const mean = (token) => token.flips.reduce((sum, flip) => sum + flip.value, 0) / token.flips.length

function stats({ job, tokens, estimate, question }, k) {
  const top = tokens.reduce((best, one) => Math.abs(one.value ?? 0) > Math.abs(best?.value ?? 0) ? one : best, null)
  const facts = { ...(shown.filter(Boolean).length > 1 ? { Text: `${'AB'[k]}, ${question.model}` } : {}), 'Mean of all flips': number(job.found.mean),
    Largest: top ? `${number(top.value)}: ${top.text} → ${top.flips[0].to || 'nothing'}` : '0', Values: estimate ? 'estimate' : 'exact', Method: job.found.engine.name, Flips: String(job.found.flips) }
  if (job.found.unresolved) facts['Not resolved'] = `${job.found.unresolved} flips`
  return make('dl', { className: 'stats' }, ...Object.entries(facts).map(([name, text]) => make('div', {}, make('dt', { textContent: name }), make('dd', { textContent: text }))))
}

// Two texts in lines of a table: what aligns stands in one column, with the difference below.
function aligned(a, b) {
  const best = Array.from({ length: a.length + 1 }, () => new Array(b.length + 1).fill(0))
  for (let i = a.length - 1; i >= 0; i--) for (let j = b.length - 1; j >= 0; j--) {
    best[i][j] = a[i].text === b[j].text ? best[i + 1][j + 1] + 2 : Math.max(best[i + 1][j + 1], best[i + 1][j], best[i][j + 1])
  }
  const columns = []
  let i = 0, j = 0
  while (i < a.length || j < b.length) {
    const both = i < a.length && j < b.length
    if (both && (a[i].text === b[j].text || best[i][j] === best[i + 1][j + 1])) columns.push([a[i++], b[j++]])
    else if (j >= b.length || (both && best[i][j] === best[i + 1][j])) columns.push([a[i++], null])
    else columns.push([null, b[j++]])
  }
  return columns
}
function pairs([one, two], end) {
  const columns = aligned(one.tokens, two.tokens), most = Math.max(2, Math.floor((find('#answer').clientWidth - 48) / 92)), tables = []
  for (let at = 0; at < columns.length; at += most) {
    const part = columns.slice(at, at + most)
    const line = (title, cells) => make('tr', {}, make('th', { scope: 'row', textContent: title }), ...cells.map((cell) => make('td', {}, cell)))
    tables.push(make('table', { className: 'pair' }, make('tbody', {}, line('A', part.map(([a]) => a ? tokenOf(a, end) : '–')), line('B', part.map(([, b]) => b ? tokenOf(b, end) : '–')),
      line('B − A', part.map(([a, b]) => {
        if (!a?.flips.length || !b?.flips.length) return ''
        const off = Math.abs(b.value) - Math.abs(a.value)
        return make('span', {}, make('span', { className: 'bar' }, tint(make('i', { className: off < 0 ? 'less' : '' }), off, end)), `${off < 0 ? '−' : '+'}${number(Math.abs(off))}`)
      })))))
  }
  return tables
}

function downloads(drawn) {
  const slug = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '')
  find('#downloads').hidden = false
  find('#downloads ul').replaceChildren(...drawn.flatMap(({ job, question }) => {
    const name = slug(`${question.model} ${first(question, 30)} ${kindOf(question, 'flips', 'flips')}`)
    const files = [['picture.svg', 'Picture', 'SVG', 'svg'], ['page', 'Page to send', 'HTML', 'html'], ['result.parquet', 'All values', 'Parquet', 'parquet'], ['result.json', 'All values', 'JSON', 'json']]
    return [make('li', {}, make('code', { textContent: name })), ...files.map(([path, title, form, end]) =>
      make('li', {}, make('a', { href: `/v1/measurements/${job.id}/${path}`, download: `${name}.${end}` }, title, make('span', { textContent: form }))))]
  }))
}

function showTip(button, one) {
  const tip = find('#tip'), box = button.getBoundingClientRect()
  all('.token.open').forEach((other) => other.classList.remove('open'))
  button.classList.add('open')
  tip.replaceChildren(make('strong', { textContent: `${one.text}: ${number(one.value)}` }), make('p', { className: 'help', textContent: `Largest of ${one.flips.length} flips; mean ${number(mean(one))}` }),
    make('ul', {}, ...one.flips.slice(0, 3).map((flip) => make('li', {}, make('span', { textContent: `→ ${flip.to || 'nothing'}` }), make('span', { textContent: number(flip.value) })))))
  tip.hidden = false
  tip.style.setProperty('left', `${Math.max(8, Math.min(box.left + scrollX, document.documentElement.clientWidth - 272))}px`)
  tip.style.setProperty('top', `${box.bottom + scrollY + 8}px`)
}
function hideTip() { find('#tip').hidden = true; all('.token.open').forEach((one) => one.classList.remove('open')) }
find('#sentence').addEventListener('keydown', (event) => {
  const buttons = all('button.token', find('#sentence')), at = buttons.indexOf(document.activeElement)
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: buttons.length - 1 }[event.key]
  if (to === undefined || !buttons[to]) return
  event.preventDefault()
  buttons[at].tabIndex = -1
  buttons[to].tabIndex = 0
  buttons[to].focus()
})
find('#sentence').addEventListener('focusout', (event) => { if (!find('#sentence').contains(event.relatedTarget)) hideTip() })
find('#tip').addEventListener('pointerleave', hideTip)

// Following jobs by server-sent events: a browser keeps six connections, so those of another question are left.

const streams = new Set()
function leave() { streams.forEach((events) => events.close()); streams.clear() }
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
      if (events.readyState === EventSource.CLOSED) { close(); failed(new Error('The service refuses; load the page again with its token.')) }
    }
    for (const name of ['queued', 'running', ...ended]) events.addEventListener(name, heard)
  })
}
async function show(job, at, turn) {
  const data = await json(`/v1/measurements/${job.id}/result.json`)
  if (turn !== asked || (isEstimate(job.question) && shown[at] && !shown[at].estimate)) return
  shown[at] = { job, question: job.question, tokens: tokensOf(data), estimate: isEstimate(job.question), signed: data.flips.norm === undefined }
  draw()
}

let opened = 0 // the turn whose answer is shown: a refused question leaves the former one
async function measure(asks, at, turn) {
  const question = asks[at], what = isEstimate(question) ? 'Estimate' : 'Exact values'
  const explain = (one) => post('/v1/measurements?explain=1', one).then((about) => about.seconds + about.compiling)
  const exact = await explain(question)
  if (turn === asked && opened !== turn) { opened = turn; begin(asks) }
  if (kindOf(question, 'engine', 'auto') === 'auto' && exact > ESTIMATE_FROM) {
    // Random combinations of the outputs give the norm to 18 %, and cost a twentieth of all outputs.
    const sketch = kindOf(question, 'measure', 'l2') === 'l2' ? { sketch: 16 } : {}
    const rough = { ...question, engine: { kind: 'first-order', verify: 8, ...sketch } }
    if (await explain(rough).catch(() => Infinity) < exact / 2) { // a measure may have no estimate
      const early = await post('/v1/measurements', rough).catch(() => null) // before the exact values: first in, first out
      if (early) {
        running.push(early.id)
        follow(early, () => {}).then((now) => now.state === 'finished' && turn === asked && show(now, at, turn)).catch(() => {}) // the exact values tell
      }
    }
  }
  const job = await post('/v1/measurements', question)
  running.push(job.id)
  const now = await follow(job, (one) => turn === asked && tell(one, what))
  if (turn === asked && now.state === 'finished') await show(now, at, turn)
  return now
}

async function ask() {
  await ready
  clearErrors()
  const turn = ++asked, two = find('#compare').checked
  running = []
  leave()
  const missing = [['tokens', '#text'], ...(two ? [['tokens2', '#text2']] : [])].filter(([, id]) => !find(id).value.trim())
  if (missing.length) { wrong({ problems: missing.map(([name]) => ({ path: [name], remedy: 'type a text' })) }); return }
  const asks = two ? [questionOf(), questionOf(true)] : [questionOf()]
  find('#cancel').hidden = false
  find('#start').setAttribute('aria-disabled', 'true')
  state('Asking…')
  if (innerWidth <= 880) find('#answer').scrollIntoView()
  const jobs = await Promise.all(asks.map((_, at) => measure(asks, at, turn).catch((error) => {
    if (turn === asked) { find('#progress').hidden = true; state(''); wrong(error, at === 1) }
    return null
  })))
  if (turn !== asked) return
  running = []
  find('#cancel').hidden = true
  find('#start').removeAttribute('aria-disabled')
  const ids = jobs.filter(Boolean).map((job) => job.id)
  if (ids.length) history.replaceState(null, '', `#${ids.join(',')}`)
  remember()
}

// A job that has ended in the meantime would be forgotten.
const cancel = () => running.forEach((id) => json(`/v1/measurements/${id}`)
  .then((job) => ended.includes(job.state) ? null : call(`/v1/measurements/${id}`, { method: 'DELETE' })).catch(() => {}))

async function recall(ids) {
  const turn = ++asked
  leave()
  clearErrors()
  const jobs = (await Promise.all(ids.map((id) => json(`/v1/measurements/${id}`).catch(() => null)))).filter(Boolean)
  if (turn !== asked || !jobs.length) return
  fill(jobs[0].question, jobs[1]?.question)
  begin(jobs.map((job) => job.question))
  await Promise.all(jobs.map((job, at) => follow(job, (now) => tell(now, isEstimate(job.question) ? 'Estimate' : 'Exact values'))
    .then((now) => now.state === 'finished' && show(now, at, turn)).catch((error) => state(error.message, true))))
}

async function remember() {
  const jobs = await json('/v1/measurements').catch(() => [])
  find('#history').replaceChildren(...jobs.slice(0, 30).map((job) => {
    const question = job.question, name = first(question)
    const open = make('button', { type: 'button', className: 'link', textContent: name })
    open.addEventListener('click', () => { location.hash = job.id })
    const fields = ['flips', 'measure', 'engine'].flatMap((one) => {
      const answer = question[one]
      if (!answer || (one === 'engine' && kindOf(question, one) === 'auto')) return []
      const { kind, ...rest } = typeof answer === 'string' ? { kind: answer } : answer
      return [[kind, ...Object.entries(rest).map(([key, value]) => `${key} ${JSON.stringify(value)}`)].join(', ')]
    })
    const chips = [question.model, ...fields, ...(question.readout ?? 'auto') !== 'auto' ? [`read at ${question.readout}`] : [], ...question.output ? [question.output] : [],
      job.state === 'finished' ? `mean ${number(job.found?.mean)}` : job.state]
    const again = make('button', { type: 'button', textContent: 'Use again', 'aria-label': `Use again: ${name}` })
    again.addEventListener('click', () => { fill(question); find('#text').focus() })
    const does = ended.includes(job.state) ? 'Forget' : 'Cancel'
    const forget = make('button', { type: 'button', textContent: '×', 'aria-label': `${does} ${name}` })
    forget.addEventListener('click', async () => {
      const at = all('#history li').indexOf(forget.parentElement)
      await call(`/v1/measurements/${job.id}`, { method: 'DELETE' }).catch(() => {})
      await remember()
      const left = all('#history li') // the focus stays in the list
      find('button:last-child', left[Math.min(at, left.length - 1)] ?? find('#ask'))?.focus()
    })
    return make('li', {}, make('div', {}, open, make('p', {}, ...chips.map((one) => make('span', { className: 'chip', textContent: one })))), again, forget)
  }))
}

const examples = ['The committee did not approve the new budget.', 'The keys to the cabinet are on the table.']
find('#ask').addEventListener('submit', (event) => { event.preventDefault(); if (find('#cancel').hidden) ask() })
find('#ask').addEventListener('input', (event) => {
  const error = find(`.error[data-of="${event.target.id}"]`)
  if (error) { error.remove(); event.target.removeAttribute('aria-invalid'); find('#cost').textContent = ''; find('#cost').className = '' }
  price()
})
find('#cancel').addEventListener('click', cancel)
find('#compare').addEventListener('change', () => { compare(); if (find('#compare').checked) find('#text2').focus() })
find('#model').addEventListener('change', () => drawQuestion('measure', find('#measure').value))
all('[data-example]').forEach((one) => one.addEventListener('click', () => { find('#text').value = examples[one.dataset.example]; find('#text').focus(); price() }))
addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) find('#ask').requestSubmit()
  if (event.key !== 'Escape') return
  if (!find('#tip').hidden) hideTip()
  else if (find('#downloads').open) find('#downloads').open = false
  else cancel()
})
if (/Mac/.test(navigator.platform)) find('.main kbd').textContent = '⌘ ↵'
const fromAddress = () => recall(location.hash.slice(1).split(',').filter(Boolean))
const ready = Promise.all([json('/openapi.json'), json('/v1/models').catch(() => null)]).then(([api, loaded]) => {
  const asks = api.components.schemas.Measurement.properties
  const models = served = loaded ?? asks.model.enum.map((name) => ({ name }))
  for (const select of [find('#model'), find('#model2')]) select.append(...models.map((one) => make('option', { textContent: one.name })))
  for (const name of Object.keys(defaults)) questions[name] = Object.fromEntries(asks[name].anyOf.slice(1).map((one) => [one.properties.kind.const, one]))
  for (const [name, usual] of Object.entries(defaults)) drawQuestion(name, usual)
  find('#version').textContent = api.info.version
  addEventListener('hashchange', fromAddress)
  if (location.hash.length > 1) fromAddress()
})
const report = (name) => make('a', { href: `/reports/${encodeURIComponent(name)}/report.html`, textContent: name, target: '_blank' })
json('/v1/reports').then((names) => find('#reports').append(...names.map((name) => make('li', {}, report(name))))).catch(() => null)
ready.catch((error) => state(error.message, true)).then(remember)
