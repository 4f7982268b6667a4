// One scenario after the other: public reads, warm reads, cold reads, /authorize,
// and the mix under growing load. Latencies are told apart by scenario.
//
//   k6 run bench/k6/scenarios.js
//   k6 run -e SCENARIO=warm bench/k6/scenarios.js
//
// A cold read is the first after the user's context was invalidated. It needs
// ADMIN_URL and ADMIN_TOKEN of the proxy; without them the scenario is left out.
import http from 'k6/http';
import { fail, sleep } from 'k6';
import exec from 'k6/execution';
import { data, nth, send, tokens, userOf } from './mix.js';

const admin = __ENV.ADMIN_URL;
const adminToken = __ENV.ADMIN_TOKEN;

function plan() {
  const scenarios = {};
  const thresholds = { checks: ['rate==1'] };
  let start = 0;
  for (const [name, s] of Object.entries(data.scenarios)) {
    if ((__ENV.SCENARIO && __ENV.SCENARIO !== name) || (name === 'cold' && !(admin && adminToken))) {
      continue;
    }
    scenarios[name] = { startTime: `${start}s`, exec: name, gracefulStop: '5s' };
    if (s.to) {
      Object.assign(scenarios[name], {
        executor: 'ramping-vus', startVUs: s.from, stages: [{ duration: `${s.seconds}s`, target: s.to }],
      });
    } else {
      Object.assign(scenarios[name], { executor: 'constant-vus', vus: s.vus, duration: `${s.seconds}s` });
    }
    thresholds[`http_req_duration{scenario:${name}}`] = ['max>=0']; // has it listed by itself
    start += s.seconds + 5;
  }
  return { scenarios, thresholds };
}

export const options = plan();

export function setup() {
  return tokens();
}

function pause() {
  sleep(data.pause_ms / 1000);
}

function one(name) {
  return (allTokens) => {
    send(data.scenarios[name].call, userOf(exec.scenario.iterationInTest), allTokens);
    pause();
  };
}

const publicReads = one('public');
export { publicReads as public };
export const warm = one('warm');
export const authorize = one('authorize');

export function cold(allTokens) {
  const user = userOf(exec.scenario.iterationInTest);
  const answer = http.post(`${admin}/invalidate`, JSON.stringify({ user: user.name }), {
    headers: { Authorization: `Bearer ${adminToken}` }, tags: { name: 'invalidate' },
  });
  if (answer.status !== 200) {
    fail(`cannot invalidate ${user.name}: ${answer.status} ${answer.body}`);
  }
  send(data.scenarios.cold.call, user, allTokens);
  pause();
}

export function stress(allTokens) {
  const n = exec.scenario.iterationInTest;
  send(nth(n), userOf(n), allTokens);
  pause();
}
