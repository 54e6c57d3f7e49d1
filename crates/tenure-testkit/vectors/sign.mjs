// Signs extrinsics of StorageHub's runtimes with another library, for a comparison byte by byte.
//
//   npm i @polkadot/api@16.5.6 && node sign.mjs > extrinsics.json
import { execFileSync } from 'node:child_process'
import { Keyring } from '@polkadot/keyring'
import { Metadata, TypeRegistry } from '@polkadot/types'
import { cryptoWaitReady } from '@polkadot/util-crypto'
import { u8aToHex } from '@polkadot/util'

await cryptoWaitReady()
const genesis = '0x' + '11'.repeat(32)
const birth = '0x' + '22'.repeat(32)
const alith = '0x5fb92d6e98884f76de468fa3f6278f8807c48bebc13595d45af5bdc4da702133'
const all = []

const runtimes = [
  { name: 'storagehub-solochain-evm', type: 'ethereum', suri: alith },
  { name: 'storagehub-parachain', type: 'ecdsa', suri: '//Alice' },
  { name: 'storagehub-parachain', type: 'sr25519', suri: '//Alice//stash/1' },
]
for (const { name, type, suri } of runtimes) {
  const scale = execFileSync('zstd', ['-dcq', new URL(`${name}.scale.zst`, import.meta.url).pathname], { maxBuffer: 1 << 26 })
  const registry = new TypeRegistry()
  const metadata = new Metadata(registry, u8aToHex(scale))
  registry.setMetadata(metadata)
  const pair = new Keyring({ type }).createFromUri(suri)
  const remarks = [['0x676d', 5, 0, 100], ['0x' + '7a'.repeat(300), 70000, 123456789012345n, 4099]]
  for (const [remark, nonce, tip, number] of remarks) {
    const method = registry.createType('Call', { args: [remark], callIndex: [0, 0] })
    const era = registry.createType('ExtrinsicEra', { current: number, period: 64 })
    const options = { blockHash: birth, era, genesisHash: genesis, nonce, tip, runtimeVersion: { specVersion: 7, transactionVersion: 3 } }
    const extrinsic = registry.createType('Extrinsic', { method: method.toHex() }, { version: 4 })
    extrinsic.sign(pair, options)
    all.push({ runtime: name, scheme: type, suri, remark, nonce, tip: tip.toString(), period: 64, number, raw: extrinsic.toHex() })
  }
}
process.stdout.write(JSON.stringify(all, null, 1) + '\n')
