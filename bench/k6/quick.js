// 10 users for 30 s with the mix of mix.json: the figure that the page of results
// compares.
//
//   k6 run bench/k6/quick.js
import { sleep } from 'k6';
import exec from 'k6/execution';
import { data, nth, send, thresholds, tokens, userOf } from './mix.js';

export const options = { vus: data.quick.vus, duration: `${data.quick.seconds}s`, thresholds };

export function setup() {
  return tokens();
}

export default function (allTokens) {
  const n = exec.scenario.iterationInTest;
  send(nth(n), userOf(n), allTokens);
  sleep(data.pause_ms / 1000);
}
