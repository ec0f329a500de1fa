/** A mail as its sender made it, in a frame that can neither run scripts nor reach this page. */
import { useSignal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import type { Message } from '../contract.ts';
import { frameSandbox, hasRemoteImages, makeMailDocument } from '../mail-document.ts';
import { usePage } from '../page.ts';

/** Larger images stay attachments. */
const maxInlineBytes = 3_000_000;

export function MailFrame({ message, html }: { message: Message; html: string }) {
  const remoteImages = useSignal(false);
  const inline = useInlineImages(message);
  return (
    <>
      {hasRemoteImages(html) && !remoteImages.value && (
        <p class="note">
          Remote images are off: they would tell the sender that the mail was read.{' '}
          <button
            type="button"
            class="plain"
            onClick={() => {
              remoteImages.value = true;
            }}
          >
            Show remote images
          </button>
        </p>
      )}
      <iframe
        class="mail"
        title="The mail as its sender made it"
        sandbox={frameSandbox}
        referrerpolicy="no-referrer"
        srcdoc={makeMailDocument(html, { remoteImages: remoteImages.value, inline })}
      />
    </>
  );
}

/** As `data:` URLs: the frame may load nothing. */
function useInlineImages({ id, attachments }: Message): ReadonlyMap<string, string> {
  const { api } = usePage();
  const inline = useSignal<ReadonlyMap<string, string>>(new Map());
  useEffect(() => {
    const images = attachments.filter(
      ({ contentId, contentType, size }) =>
        contentId !== null && /^image\/(png|jpeg|gif|webp)$/.test(contentType) && size <= maxInlineBytes,
    );
    const load = async ({ id: n, contentId }: (typeof images)[number]) =>
      [(contentId ?? '').replace(/^<|>$/g, ''), await toDataUrl(await api.getAttachment(id, n))] as const;
    Promise.all(images.map(load)).then(
      (loaded) => {
        if (loaded.length > 0) inline.value = new Map(loaded);
      },
      () => {},
    );
  }, [id]);
  return inline.value;
}

function toDataUrl(blob: Blob): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
