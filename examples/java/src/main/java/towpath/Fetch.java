package towpath;

import static java.nio.charset.StandardCharsets.UTF_8;
import static java.nio.file.StandardOpenOption.CREATE;
import static java.nio.file.StandardOpenOption.READ;
import static java.nio.file.StandardOpenOption.WRITE;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;

/** Fetch ENDPOINT PATH COPY [SECRET-KEY-FILE SERVER-KEY-FILE] fetches a file from {@code tow serve}, ten pieces ahead. What it has is in
 *  COPY.part, and is continued by the next connection, or the next run. */
public final class Fetch {
    private static final int PIECE_BYTES = 250_000;
    private static final int AHEAD = 10;

    private static void fetch(Link link, String path, FileChannel part) throws Link.Lost, IOException {
        long next = part.size();
        part.position(next);
        for (int n = 0; n < AHEAD; n++, next += PIECE_BYTES) {
            link.send("fetch", path, next, PIECE_BYTES);
        }
        while (true) {
            var answer = link.receive(-1);
            if (answer.size() > 1) { // the word "error", and why
                throw new IOException(path + ": " + new String(answer.get(1), UTF_8));
            }
            var piece = ByteBuffer.wrap(answer.get(0));
            while (piece.hasRemaining()) {
                part.write(piece);
            }
            if (piece.limit() < PIECE_BYTES) {
                return; // the end of the file
            }
            link.send("fetch", path, next, PIECE_BYTES);
            next += PIECE_BYTES;
        }
    }

    public static void main(String[] arguments) {
        Link.main(arguments, 3, "Fetch ENDPOINT PATH COPY", () -> {
            var keys = Link.readKeys(arguments, 3);
            var part = Path.of(arguments[2] + ".part");
            try (var file = FileChannel.open(part, CREATE, READ, WRITE)) {
                Link.keep(new String[] {arguments[0]}, keys, link -> fetch(link, arguments[1], file));
            }
            Files.move(part, Path.of(arguments[2]), StandardCopyOption.REPLACE_EXISTING);
        });
    }
}
