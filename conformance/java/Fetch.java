import java.io.BufferedOutputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import org.zeromq.SocketType;
import org.zeromq.ZContext;
import org.zeromq.ZMQ;
import org.zeromq.ZMsg;

/** Fetches a file from {@code tow serve} with JeroMQ, which announces ZMTP 3.0: ENDPOINT PATH COPY, and for CURVE SERVER_KEY PUBLIC_KEY
 *  SECRET_KEY; ten requests ahead. */
public final class Fetch {
    private static final int PIECE_BYTES = 250_000;
    private static final int AHEAD = 10;

    public static void main(String[] arguments) throws IOException {
        try (ZContext context = new ZContext();
                OutputStream copy = new BufferedOutputStream(new FileOutputStream(arguments[2]))) {
            ZMQ.Socket dealer = context.createSocket(SocketType.DEALER);
            dealer.setReceiveTimeOut(30_000);
            dealer.setHeartbeatIvl(500);
            if (arguments.length > 3) {
                dealer.setCurveServerKey(ZMQ.Curve.z85Decode(arguments[3]));
                dealer.setCurvePublicKey(ZMQ.Curve.z85Decode(arguments[4]));
                dealer.setCurveSecretKey(ZMQ.Curve.z85Decode(arguments[5]));
            }
            dealer.connect(arguments[0]);
            long asked = 0;
            for (; asked < AHEAD; asked++) {
                ask(dealer, arguments[1], asked);
            }
            while (true) {
                ZMsg answer = ZMsg.recvMsg(dealer);
                if (answer == null || answer.size() != 1) {
                    throw new IOException("no piece but " + answer);
                }
                byte[] piece = answer.getFirst().getData();
                copy.write(piece);
                if (piece.length < PIECE_BYTES) {
                    return;
                }
                ask(dealer, arguments[1], asked++);
            }
        }
    }

    private static void ask(ZMQ.Socket dealer, String path, long index) {
        ZMsg request = ZMsg.newStringMsg("fetch", path, Long.toString(index * PIECE_BYTES), Integer.toString(PIECE_BYTES));
        request.send(dealer);
    }
}
