package towpath;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.IOException;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.List;

/** Call ENDPOINT[,ENDPOINT...] SERVICE [SECRET-KEY-FILE SERVER-KEY-FILE] &lt;LINES sends a numbered request for each line, and prints NUMBER
 *  STATUS REPLY as the replies come. When a broker is lost, what has no outcome goes to the next, under the same numbers. */
public final class Call {
    private static final int AHEAD = 1000; // requests that may wait for their outcome
    private static final long NEVER = Long.MAX_VALUE; // when a request is sent that has been sent

    private static final class Request {
        final byte[] body;
        long due; // when to send it
        boolean resent; // it was sent over an earlier connection
        boolean settled;
        byte[] parts = {}; // of the reply

        Request(String line) {
            body = line.getBytes(UTF_8);
        }
    }

    private final byte[] id = new byte[16];
    private final String service;
    private final List<Request> requests = new ArrayList<>(); // the first has number 1
    private int first; // all before it are settled
    private boolean failed;

    private Call(String service) throws IOException {
        this.service = service;
        new SecureRandom().nextBytes(id);
        for (String line : (Iterable<String>) new String(System.in.readAllBytes(), UTF_8).lines()::iterator) {
            requests.add(new Request(line));
        }
    }

    /** Goes on until every request has its outcome. */
    private void session(Link link) throws Link.Lost, IOException {
        for (var request : requests) {
            request.resent |= request.due == NEVER;
            request.due = 0;
            request.parts = new byte[0];
        }
        var blocks = new Records.Blocks(link, Records.CLIENT);
        blocks.add(Records.hello(id, first + 1));
        while (first < requests.size()) {
            long wait = send(blocks);
            var message = link.receive(wait);
            if (message != null) { // else one is due again
                for (var record : Records.decode(message, Records.CLIENT)) {
                    take(record, blocks);
                }
            }
            while (first < requests.size() && requests.get(first).settled) {
                first++;
            }
        }
        blocks.flush();
    }

    /** Sends what is due, and returns in how many ms something else is: -1 for ever. */
    private long send(Records.Blocks blocks) throws Link.Lost {
        long now = System.currentTimeMillis();
        long next = NEVER;
        for (int n = first; n < Math.min(first + AHEAD, requests.size()); n++) {
            var request = requests.get(n);
            if (request.settled) {
                continue;
            }
            if (request.due > now) {
                next = Math.min(next, request.due);
                continue;
            }
            request.due = NEVER;
            blocks.add(Records.request(n + 1, service, 0, request.resent ? Records.RESENT : 0, List.of(request.body)));
        }
        blocks.flush();
        return next == NEVER ? -1 : next - now;
    }

    private void take(Records.Record record, Records.Blocks blocks) throws Link.Lost {
        if (record instanceof Records.Reply reply && isWaiting(reply.number())) {
            var request = requests.get((int) reply.number() - 1);
            byte[] body = Records.join(request.parts, reply.body());
            if (reply.part() != null) {
                request.parts = body;
            } else {
                // With 206 its parts were sent over an earlier connection.
                settle(reply.number(), reply.status() == 206 ? 410 : reply.status(), body, blocks);
            }
        } else if (record instanceof Records.Refused refused && isWaiting(refused.number())) {
            if (refused.millis() != 0) {
                requests.get((int) refused.number() - 1).due = System.currentTimeMillis() + refused.millis();
            } else {
                settle(refused.number(), refused.status(), refused.reason(), blocks);
            }
        }
    }

    private boolean isWaiting(long number) {
        return number > 0 && number <= requests.size() && !requests.get((int) number - 1).settled;
    }

    private void settle(long number, int status, byte[] body, Records.Blocks blocks) throws Link.Lost {
        System.out.println(number + " " + status + " " + new String(body, UTF_8));
        failed |= status != 200;
        var request = requests.get((int) number - 1);
        request.settled = true;
        request.parts = new byte[0];
        blocks.add(Records.confirm(number, 1));
    }

    public static void main(String[] arguments) {
        Link.main(arguments, 2, "Call ENDPOINT[,ENDPOINT...] SERVICE", () -> {
            var keys = Link.readKeys(arguments, 2);
            var call = new Call(arguments[1]);
            Link.keep(arguments[0].split(","), keys, call::session);
            if (call.failed) {
                throw new IOException("some requests failed");
            }
        });
    }
}
