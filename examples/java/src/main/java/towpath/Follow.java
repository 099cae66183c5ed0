package towpath;

import static java.nio.charset.StandardCharsets.UTF_8;
import static java.nio.file.StandardOpenOption.CREATE;
import static java.nio.file.StandardOpenOption.WRITE;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;

/** Follow ENDPOINT PATH DIRECTORY [SECRET-KEY-FILE SERVER-KEY-FILE] keeps a copy of PATH ("" is all) of {@code tow serve --watch}: first
 *  what is there, then each change. Links are left out. */
public final class Follow {
    private static final int CREDIT = 1_000_000; // bytes that the server may have in flight

    private final Path directory;
    private String cursor = "beginning";
    private final Set<String> have = new HashSet<>(); // what this run has put into the directory
    private final TreeSet<String> stale = new TreeSet<>(); // what hasn't come again since the full state began

    private Follow(Path directory) {
        this.directory = directory;
    }

    private void follow(Link link, String path) throws Link.Lost, IOException {
        link.send("follow", path, cursor);
        link.send("credit", CREDIT);
        while (true) {
            var message = link.receive(-1);
            if (message.size() == 2) { // the word "error", and why
                throw new IOException(path + ": " + text(message, 1));
            }
            if (message.size() != 6) {
                throw new IOException("a message of " + message.size() + " frames: is it tow serve?");
            }
            byte[] body = message.get(5);
            long size = Long.parseLong(text(message, 3));
            long offset = Long.parseLong(text(message, 4));
            if (change(text(message, 0), text(message, 1), size, offset, body)) {
                cursor = text(message, 2);
            }
            link.send("credit", Math.max(body.length, 256));
        }
    }

    private static String text(List<byte[]> message, int frame) {
        return new String(message.get(frame), UTF_8);
    }

    /** Carries a message out; true if its change is complete. */
    private boolean change(String kind, String name, long size, long offset, byte[] body) throws IOException {
        if (kind.equals("full")) {
            stale.addAll(have);
            return false;
        }
        if (kind.equals("live")) {
            // What is in a directory goes before it.
            for (String old; (old = stale.pollLast()) != null; ) {
                remove(old);
            }
            System.out.println("up to date");
            return true;
        }
        // Never trust that it stays inside.
        for (String word : name.split("/", -1)) {
            if (List.of("", ".", "..").contains(word)) {
                throw new IOException("the server sent the path " + name);
            }
        }
        Path place = directory.resolve(name);
        switch (kind) {
            case "file" -> {
                if (!write(place, size, offset, body)) {
                    return false;
                }
                has(name);
            }
            case "dir" -> {
                Files.createDirectories(place);
                has(name);
            }
            case "gone" -> remove(name);
            default -> {} // links, and void: the file changed meanwhile, and comes again
        }
        System.out.println(kind + " " + name);
        return true;
    }

    /** Writes a piece; true if the file is complete. */
    private static boolean write(Path place, long size, long offset, byte[] body) throws IOException {
        Path part = place.resolveSibling(place.getFileName() + ".part");
        if (offset == 0) {
            Files.createDirectories(place.getParent());
            Files.deleteIfExists(part);
        }
        try (var file = FileChannel.open(part, CREATE, WRITE)) {
            var rest = ByteBuffer.wrap(body);
            while (rest.hasRemaining()) {
                file.write(rest, offset + rest.position());
            }
        }
        if (offset + body.length < size) {
            return false;
        }
        Files.move(part, place, StandardCopyOption.REPLACE_EXISTING);
        return true;
    }

    private void has(String name) {
        have.add(name);
        stale.remove(name);
    }

    /** Takes away only what this run has put there, and no directory that has something else. */
    private void remove(String name) {
        if (have.remove(name)) {
            directory.resolve(name).toFile().delete();
        }
    }

    public static void main(String[] arguments) {
        Link.main(arguments, 3, "Follow ENDPOINT PATH DIRECTORY", () -> {
            var keys = Link.readKeys(arguments, 3);
            var follow = new Follow(Path.of(arguments[2]));
            Link.keep(new String[] {arguments[0]}, keys, link -> follow.follow(link, arguments[1]));
        });
    }
}
