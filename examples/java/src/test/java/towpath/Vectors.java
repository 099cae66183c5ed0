package towpath;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.stream.Collectors;

/** Vectors FILE checks the records against testing/vectors/numbered.txt: lines of KIND BLOCK ATTACHED = WHAT IT SAYS. */
public final class Vectors {
    public static void main(String[] arguments) throws IOException {
        int wrong = 0;
        var lines = Files.readAllLines(Path.of(arguments[0]));
        for (String line : lines) {
            String[] halves = line.split(" = ", 2);
            String[] words = halves[0].split(" ");
            var frames = new ArrayList<byte[]>(List.of(unhex(words[1])));
            if (!words[2].equals("-")) {
                frames.add(unhex(words[2]));
            }
            boolean toPeer = words[0].startsWith("to-");
            String got = toPeer ? decoded(frames, words[0].equals("to-client") ? Records.CLIENT : Records.WORKER) : made(halves[1]);
            String expected = toPeer ? halves[1] : shown(frames);
            if (!got.equals(expected)) {
                System.err.println(line + ": " + got);
                wrong++;
            }
        }
        System.out.println(lines.size() + " vectors, " + wrong + " wrong");
        System.exit(wrong == 0 && lines.size() > 100 ? 0 : 1);
    }

    /** Bytes of hex, or of a byte and how many of it there are. */
    private static byte[] unhex(String text) {
        if (text.contains("*")) {
            var bytes = new byte[Integer.parseInt(text.substring(3))];
            Arrays.fill(bytes, HexFormat.of().parseHex(text.substring(0, 2))[0]);
            return bytes;
        }
        return HexFormat.of().parseHex(text.equals("-") ? "" : text);
    }

    private static String hexed(byte[] bytes) {
        var hex = HexFormat.of();
        if (bytes.length > 100) {
            var same = new byte[bytes.length];
            Arrays.fill(same, bytes[0]);
            if (Arrays.equals(same, bytes)) {
                return hex.toHexDigits(bytes[0]) + "*" + bytes.length;
            }
        }
        return hex.formatHex(bytes);
    }

    private static String shown(List<byte[]> frames) {
        return frames.stream().map(Vectors::hexed).collect(Collectors.joining(","));
    }

    private static String decoded(List<byte[]> frames, String header) {
        var message = new ArrayList<byte[]>(List.of(header.getBytes(UTF_8)));
        message.addAll(frames);
        try {
            return Records.decode(message, header).stream().map(Vectors::said).collect(Collectors.joining("; "));
        } catch (Records.Malformed malformed) {
            return "malformed";
        }
    }

    private static String said(Records.Record record) {
        if (record instanceof Records.Welcome r) {
            return "welcome " + Long.toUnsignedString(r.epoch()) + " " + Integer.toUnsignedString(r.requests()) + " "
                    + Long.toUnsignedString(r.bytes()) + " " + (r.journal() ? 1 : 0);
        } else if (record instanceof Records.Reply r) {
            String part = r.part() == null ? "-" : Integer.toUnsignedString(r.part());
            return "reply " + Long.toUnsignedString(r.number()) + " " + r.status() + " " + part + " " + shown(r.body());
        } else if (record instanceof Records.Accepted r) {
            return "accepted " + Long.toUnsignedString(r.first()) + " " + Integer.toUnsignedString(r.count());
        } else if (record instanceof Records.Refused r) {
            return "refused " + Long.toUnsignedString(r.number()) + " " + r.status() + " " + Integer.toUnsignedString(r.millis()) + " "
                    + hexed(r.reason());
        } else if (record instanceof Records.WorkerWelcome r) {
            return "welcome " + Long.toUnsignedString(r.epoch());
        } else if (record instanceof Records.Request r) {
            return "request " + hexed(r.token()) + " " + r.attempt() + " " + Integer.toUnsignedString(r.millis()) + " " + shown(r.body());
        } else if (record instanceof Records.Cancel r) {
            return "cancel " + hexed(r.token());
        } else if (record instanceof Records.Identity r) {
            return "identity " + hexed(r.token()) + " " + hexed(r.id());
        }
        return "leave";
    }

    private static String made(String says) {
        String[] w = says.split(" ", -1);
        var record = switch (w[0]) {
            case "hello" -> Records.hello(unhex(w[1]), Long.parseLong(w[2]));
            case "request" -> {
                int flags = (w[3].equals("1") ? Records.VOLATILE : 0) | (w[4].equals("1") ? Records.RESENT : 0);
                yield Records.request(Long.parseLong(w[1]), new String(unhex(w[5]), UTF_8), Integer.parseInt(w[2]), flags, body(w[6]));
            }
            case "confirm" -> Records.confirm(Long.parseLong(w[1]), Integer.parseInt(w[2]));
            case "cancel" -> Records.cancel(Long.parseLong(w[1]));
            case "ready" -> Records.ready(Integer.parseInt(w[1]), new String(unhex(w[2]), UTF_8));
            case "reply" -> Records.reply(unhex(w[1]), Integer.parseInt(w[2]), w[3].equals("-") ? null : Integer.valueOf(w[3]), body(w[4]));
            case "credit" -> Records.credit(Integer.parseInt(w[1]));
            case "leaving" -> Records.leaving();
            default -> Records.giveBack(unhex(w[1]), new String(unhex(w[2]), UTF_8));
        };
        return shown(record.attachment() == null ? List.of(record.record()) : List.of(record.record(), record.attachment()));
    }

    private static List<byte[]> body(String frames) {
        return Arrays.stream(frames.split(",", -1)).map(Vectors::unhex).toList();
    }
}
