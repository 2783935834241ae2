// The page: ask for a key, then show the board and follow the stream.
import { Api, Refused, askKey, dropKey, storeKey, storedKey } from './api.js'
import { Board } from './board.js'
import { byId, write } from './dom.js'
import { Stream } from './stream.js'

const PAUSE = 2000

/** Shows the state of the connection. */
function connection(state, words) {
  const shown = byId('connection')
  shown.dataset.state = state
  write(shown.querySelector('.words'), words)
}

/** Asks for a key until it can read; returns the API with that key, and what the key may do. */
async function enter() {
  let key = storedKey()
  for (;;) {
    if (!key) {
      connection('off', 'No key yet')
      key = await askKey()
    }
    const api = new Api(key)
    try {
      const me = await api.get('v1/me')
      const fleet = me.scopes.includes('fleet')
      const admin = fleet || me.scopes.includes('admin')
      if (!admin && !me.scopes.includes('read')) {
        throw new Refused(403, `it has scope ${me.scopes.join(' and ')}, and the dashboard needs read, admin or fleet`)
      }
      storeKey(key)
      return { api, rights: { admin, fleet, namespaces: me.whole ? null : me.namespaces } }
    } catch (error) {
      if ([401, 403, 422].includes(error.status)) {
        dropKey(`The key was not accepted: ${error.message}.`)
        key = null
      } else {
        connection('lost', `${error.message}; retrying`)
        await new Promise(resolve => setTimeout(resolve, PAUSE))
      }
    }
  }
}

function leave(why) {
  dropKey(why)
  location.reload()
}

addEventListener('hashchange', () => {
  if (location.hash.startsWith('#key=')) location.reload()
})
const { api, rights } = await enter()
for (const id of ['main', 'search', 'window', 'leave']) byId(id).hidden = false
byId('leave').addEventListener('click', () => leave(''))
const board = new Board(api, rights)
if (rights.namespaces) {
  write(byId('namespaces'), `Namespaces: ${rights.namespaces.join(', ')}`)
  byId('namespaces').hidden = false
}
const refused = words => leave(`The service no longer accepts this key: ${words}.`)
const stream = new Stream(api, {
  layout: layout => board.layout(layout),
  moment: sample => board.sample(sample),
  state: state => board.view(state),
  leases: leases => board.leases(leases),
  connection: (state, words) => (state === 'refused' ? refused(words) : connection(state, words)),
})
stream.run()
