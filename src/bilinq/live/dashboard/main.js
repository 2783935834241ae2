// The page: a key, then the board, fed by the stream.
import { Api, Refused } from './api.js'
import { Board } from './board.js'
import { byId, write } from './dom.js'
import { askKey, dropKey, keepKey, knownKey } from './key.js'
import { Stream } from './stream.js'

const PAUSE = 2000

/** Shows how the connection is. */
function connection(state, words) {
  const shown = byId('connection')
  shown.dataset.state = state
  write(shown.querySelector('.words'), words)
}

/** Returns who holds a key that may read; asks for one until it does. */
async function enter() {
  let key = knownKey()
  for (;;) {
    if (!key) {
      connection('off', 'No key yet')
      key = await askKey()
    }
    const api = new Api(key)
    try {
      const me = await api.get('v1/me')
      const admin = me.scopes.includes('admin')
      if (!admin && !me.scopes.includes('read')) {
        throw new Refused(403, `this key is for scope ${me.scopes.join(' and ')}; the dashboard needs read or admin`)
      }
      keepKey(key)
      return { api, admin }
    } catch (error) {
      if ([401, 403, 422].includes(error.status)) {
        dropKey(`That did not work: ${error.message}.`)
        key = null
      } else {
        connection('lost', `${error.message}; trying again`)
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
const { api, admin } = await enter()
for (const id of ['main', 'search', 'window', 'leave']) byId(id).hidden = false
byId('leave').addEventListener('click', () => leave(''))
const board = new Board(api, admin)
const refused = words => leave(`The service does not take this key any more: ${words}.`)
const stream = new Stream(api, {
  layout: layout => board.layout(layout),
  moment: moment => board.moment(moment),
  state: state => board.view(state),
  leases: leases => board.leases(leases),
  connection: (state, words) => (state === 'refused' ? refused(words) : connection(state, words)),
})
stream.run()
