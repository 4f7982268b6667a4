// The mix of mix.json while the users grow from 5 to 50 over 60 s.
//
//   k6 run bench/k6/stress.js
import { sleep } from 'k6';
import exec from 'k6/execution';
import { data, nth, send, thresholds, tokens, userOf } from './mix.js';

export const options = {
  scenarios: {
    stress: {
      executor: 'ramping-vus',
      startVUs: data.stress.from,
      stages: [{ duration: `${data.stress.seconds}s`, target: data.stress.to }],
    },
  },
  thresholds,
};

export function setup() {
  return tokens();
}

export default function (allTokens) {
  const n = exec.scenario.iterationInTest;
  send(nth(n), userOf(n), allTokens);
  sleep(data.pause_ms / 1000);
}
