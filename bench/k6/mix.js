// What the scripts share: the calls of mix.json, which the Go harness reads too.
//
// PROXY_URL   the proxy                      (http://127.0.0.1:3001)
// ISSUER_URL  the issuer, for password grants (http://127.0.0.1:8080/auth/realms/cwms)
import http from 'k6/http';
import { check, fail } from 'k6';

export const data = JSON.parse(open('./mix.json'));

const proxy = __ENV.PROXY_URL || 'http://127.0.0.1:3001';
const issuer = __ENV.ISSUER_URL || 'http://127.0.0.1:8080/auth/realms/cwms';

// tokens asks for one token for each user; the password of a test user is its
// name. To be called from setup().
export function tokens() {
  const all = {};
  for (const user of data.users) {
    const answer = http.post(`${issuer}/protocol/openid-connect/token`, {
      grant_type: 'password', client_id: 'cwms', username: user.name, password: user.name,
    });
    if (answer.status !== 200) {
      fail(`no token for ${user.name}: ${answer.status} ${answer.body}`);
    }
    all[user.name] = answer.json('access_token');
  }
  return all;
}

// send makes one call of mix.json for a user and verifies the answer.
export function send(name, user, allTokens) {
  const call = data.calls[name];
  const fill = (text) => text.replace('{series}', data.series).replace('{office}', user.office);
  const headers = {};
  if (call.accept) {
    headers.Accept = call.accept;
  }
  if (call.token) {
    headers.Authorization = `Bearer ${allTokens[user.name]}`;
  }
  let body = null;
  if (call.body) {
    headers['Content-Type'] = 'application/json';
    body = fill(JSON.stringify(call.body));
  }
  const answer = http.request(call.method, proxy + fill(call.path), body, { headers, tags: { name } });
  check(answer, {
    [`${name} answers ${call.status}`]: (r) => r.status === call.status,
    [`${name} is complete`]: (r) => r.body && r.body.includes(call.contains),
  });
}

// The n-th request of the mix: any hundred in a row have exactly its percentages.
export function nth(n) {
  let at = (n * 37) % 100;
  for (const part of data.mix) {
    if (at < part.percent) {
      return part.call;
    }
    at -= part.percent;
  }
  return fail('the percentages of the mix are less than 100');
}

export function userOf(n) {
  return data.users[n % data.users.length];
}

// A check that fails fails the run.
export const thresholds = { checks: ['rate==1'] };
