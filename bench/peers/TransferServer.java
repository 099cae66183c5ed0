import java.io.DataInputStream;
import java.io.EOFException;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/**
 * raw_server's protocol (a 16-byte request, an 8-byte length and the file) in Java: {@code copy} reads and writes through an array of
 * 4 KiB, {@code transfer} uses FileChannel.transferTo. One connection at a time.
 */
public class TransferServer {
    private static final int BUFFER_BYTES = 4096;

    public static void main(String[] arguments) throws IOException {
        boolean transfer = arguments[0].equals("transfer");
        try (ServerSocketChannel listener = ServerSocketChannel.open()) {
            listener.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
            System.out.println("ready " + ((InetSocketAddress) listener.getLocalAddress()).getPort());
            while (true) {
                try (SocketChannel peer = listener.accept()) {
                    serve(peer, arguments, transfer);
                }
            }
        }
    }

    private static void serve(SocketChannel peer, String[] arguments, boolean transfer) throws IOException {
        DataInputStream requests = new DataInputStream(Channels.newInputStream(peer));
        while (true) {
            long index;
            try {
                index = requests.readLong();
            } catch (EOFException end) {
                return;
            }
            long wanted = requests.readLong();
            Path file = Path.of(arguments[Math.toIntExact(index) + 1]);
            if (transfer) {
                sendByTransfer(peer, file, wanted);
            } else {
                sendByCopy(peer, file, wanted);
            }
        }
    }

    private static void sendHeader(SocketChannel peer, long length) throws IOException {
        ByteBuffer header = ByteBuffer.allocate(Long.BYTES).putLong(length).flip();
        while (header.hasRemaining()) {
            peer.write(header);
        }
    }

    private static void sendByTransfer(SocketChannel peer, Path path, long wanted) throws IOException {
        try (FileChannel file = FileChannel.open(path, StandardOpenOption.READ)) {
            long length = wanted == 0 ? file.size() : Math.min(wanted, file.size());
            sendHeader(peer, length);
            for (long sent = 0; sent < length; ) {
                sent += file.transferTo(sent, length - sent, peer);
            }
        }
    }

    private static void sendByCopy(SocketChannel peer, Path path, long wanted) throws IOException {
        try (InputStream file = new FileInputStream(path.toFile())) {
            long size = path.toFile().length();
            long length = wanted == 0 ? size : Math.min(wanted, size);
            sendHeader(peer, length);
            OutputStream out = peer.socket().getOutputStream();
            byte[] buffer = new byte[BUFFER_BYTES];
            for (long sent = 0; sent < length; ) {
                int got = file.read(buffer, 0, (int) Math.min(buffer.length, length - sent));
                if (got < 0) {
                    throw new EOFException(path.toString());
                }
                out.write(buffer, 0, got);
                sent += got;
            }
        }
    }
}
