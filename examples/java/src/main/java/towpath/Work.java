package towpath;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.IOException;
import java.util.List;

/** Work ENDPOINT SERVICE [SECRET-KEY-FILE SERVER-KEY-FILE] is a worker that takes ten requests at a time and replies in capitals. Requests
 *  that it has when it ends go to another worker. */
public final class Work {
    private static final int CREDIT = 10; // requests that the broker may give at a time

    private static byte[] handle(byte[] body) {
        return new String(body, UTF_8).toUpperCase().getBytes(UTF_8);
    }

    private static void work(Link link, String service) throws Link.Lost, IOException {
        var blocks = new Records.Blocks(link, Records.WORKER);
        blocks.add(Records.ready(CREDIT, service));
        while (true) {
            blocks.flush();
            for (var record : Records.decode(link.receive(-1), Records.WORKER)) {
                if (record instanceof Records.Request request) {
                    byte[] reply = handle(Records.join(new byte[0], request.body()));
                    blocks.add(Records.reply(request.token(), 200, null, List.of(reply)));
                }
            }
        }
    }

    public static void main(String[] arguments) {
        Link.main(arguments, 2, "Work ENDPOINT SERVICE", () -> {
            var keys = Link.readKeys(arguments, 2);
            Link.keep(new String[] {arguments[0]}, keys, link -> work(link, arguments[1]));
        });
    }
}
